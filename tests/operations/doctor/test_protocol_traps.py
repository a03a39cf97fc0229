"""Which of the doctor's checks look for the traps of each protocol, beside those that hold for all."""

from typing import Final

import pytest

from pdgate.operations.doctor import checks
from pdgate.operations.doctor.checks import CHECKS, DoctorCheck
from pdgate.protocols import plugins

OF_ALL: Final = (checks.NO_PAIR, checks.MODELS_DIFFER, checks.VERSIONS_DIFFER, checks.TOKENS_DIFFER)
TRAPS: Final[dict[str, tuple[DoctorCheck, ...]]] = {
    "ascend-layerwise": (checks.BLOCK_SIZE_DIFFERS, checks.KV_DTYPE_DIFFERS),
    "decode-first": (checks.KV_PEERS_REFUSED, checks.LOADS_FAILED),
    "lmcache": (checks.HASH_SEED_DIFFERS, checks.KV_DTYPE_DIFFERS),
    "lmdeploy": (checks.TP_DIFFERS, checks.BLOCK_SIZE_DIFFERS),
    "mori-io": (checks.ROLES_CROSSED, checks.KV_DTYPE_DIFFERS),
    "neuron": (checks.ROLES_CROSSED, checks.BLOCK_SIZE_DIFFERS),
    "offload-p2p": (checks.HASH_SEED_DIFFERS, checks.BLOCK_SIZE_DIFFERS),
    "sglang": (checks.SHOWS_ALL, checks.ROLES_CROSSED, checks.LOOPBACK_ANNOUNCED),
    "store-mediated": (checks.HASH_SEED_DIFFERS, checks.PREFIX_CACHING_OFF),
    "tensorrt-llm": (checks.BLOCK_SIZE_DIFFERS, checks.LEASES_EXPIRED),
    "tpu": (checks.ROLES_CROSSED, checks.BLOCK_SIZE_DIFFERS),
    "vllm-kvt": (checks.RANKS_UNNAMED, checks.KV_PEERS_REFUSED, checks.LOADS_FAILED),
    "vllm-mooncake": (checks.BOOTSTRAP_SILENT, checks.PINNED_ENGINE_ID),
    "vllm-nixl": (
        checks.NO_CONNECTOR,
        checks.PINNED_ENGINE_ID,
        checks.READ_LATE,
        checks.LEASE_DIFFERS,
    ),
}


@pytest.mark.parametrize("protocol", plugins.names(plugins.CONNECTORS))
def test_each_protocol_that_hands_kv_over_has_checks_for_its_traps(protocol: str) -> None:
    """A new one is to say which of them look for its own, or to bring some."""
    assert TRAPS[protocol]
    assert {*TRAPS[protocol], *OF_ALL} <= set(CHECKS)
