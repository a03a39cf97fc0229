"""Causes for which an engine does not take over KV, as far as its page shows them, and their cures.

The likeliest cause, not a proof: an engine counts what happened, not why.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pdgate.gateway.engine_metrics.counters import EngineCounters
from pdgate.gateway.engine_metrics.page import MetricsPage


class VerificationCause(StrEnum):
    NO_CONNECTOR = "no_connector"
    BLOCK_SIZE_DIFFERS = "block_size_differs"
    LOADS_FAIL = "loads_fail"
    LEASES_EXPIRE = "leases_expire"
    KV_IGNORED = "kv_ignored"
    KV_INCOMPLETE = "kv_incomplete"
    READ_LATE = "read_late"


HINTS: Final[Mapping[VerificationCause, str]] = {
    VerificationCause.NO_CONNECTOR: "it runs without the KV connector of its protocol: look at how it was "
    "started (vLLM: --kv-transfer-config)",
    VerificationCause.BLOCK_SIZE_DIFFERS: "its KV blocks have another size than those of any prefill engine: start "
    "both with the same block size",
    VerificationCause.LOADS_FAIL: "its loads fail, and it computes what it could not load: its log says why "
    "(model or version unlike prefill's, or prefill cannot be reached)",
    VerificationCause.LEASES_EXPIRE: "prefill's leases end before it reads: raise the lease, or give decode "
    "more room",
    VerificationCause.KV_IGNORED: "it has a connector, which takes no notice of the KV that calls name: look "
    "at its role (vLLM: kv_role), and whether its connector is that of pdd_protocol",
    VerificationCause.KV_INCOMPLETE: "only a part of each prompt arrives: compare chunk size and prefix hash "
    "seed with prefill's",
    VerificationCause.READ_LATE: "its pages were read after their lease had ended: such answers may be wrong; "
    "raise the lease, or give decode more room",
}

LOADS_ARE_COUNTED: Final = frozenset({"vllm-nixl", "vllm-kvt", "decode-first"})
"""Protocols whose connectors, all that we know, show a counter of loads from the start."""


@dataclass(frozen=True, slots=True)
class Prefills:
    """What the prefill engines of a protocol have in common, as their last pages say.

    Attributes:
        expired: Prompts that they have lately kept for no call.
        block_tokens: Sizes of their KV blocks; empty if they do not say.
    """

    expired: float = 0.0
    block_tokens: frozenset[int] = frozenset()


def why_recomputed(
    page: MetricsPage, grew: EngineCounters, protocol: str, prefills: Prefills
) -> VerificationCause:
    """`page` is the engine's last one, `grew` what is new of its counters."""
    counters, expired = page.counters, prefills.expired
    sizes = prefills.block_tokens
    if counters.loads is None and protocol in LOADS_ARE_COUNTED and not grew.transferred:
        return VerificationCause.NO_CONNECTOR
    if page.block_tokens is not None and sizes and page.block_tokens not in sizes:
        return VerificationCause.BLOCK_SIZE_DIFFERS
    if grew.transferred:
        return VerificationCause.LEASES_EXPIRE if expired else VerificationCause.KV_INCOMPLETE
    if expired:
        return VerificationCause.LEASES_EXPIRE
    return VerificationCause.LOADS_FAIL if grew.loads_failed else VerificationCause.KV_IGNORED
