"""pdgate doctor on running engines: a right pair has no finding, and each fault of a wrong one is named."""

import json
from collections.abc import Mapping

import pytest
from typer.testing import CliRunner

from pdgate.__main__ import app
from tests.end_to_end.reference.fleet import Engine, Fleet

NIXL = "vllm-nixl"
EVENTS = ("--kv-events-port", "0")
LEASE = ("--lease-seconds", "10")
"""What a crossed pair is left with ends before its engines are to end."""

Findings = Mapping[str, list[str]]

pytestmark = pytest.mark.slow


def doctor(*args: str) -> Findings:
    """Check -> the engines that it is about."""
    told = CliRunner().invoke(app, ["doctor", *args, "--json"])
    assert told.exit_code in (0, 1), told.stderr
    found = {one["check"]: one["instances"] for one in json.loads(told.stdout)["findings"]}
    assert told.exit_code == bool(found)
    return found


def pair(prefill: Engine, decode: Engine) -> list[str]:
    return ["--prefill", prefill.url, "--decode", decode.url]


def test_each_fault_of_a_pair_is_named(own_fleet: Fleet) -> None:
    """Engines that are right, one that differs in seed and id, and one with other blocks."""
    prefill, decode = (
        own_fleet.engine(role, NIXL, "tcp", *EVENTS, *LEASE) for role in ("prefill", "decode")
    )
    pinned = ("--engine-id", "prefill-a", "--prefix-hash-seed", "7")
    odd = own_fleet.engine("prefill", NIXL, "tcp", *EVENTS, *pinned)
    large = own_fleet.engine("decode", NIXL, "tcp", "--block-tokens", "32", "--blocks", "256")

    assert doctor(*pair(prefill, decode)) == {}
    assert doctor(*pair(odd, decode)) == {
        "pinned_engine_id": ["prefill-0"],
        "hash_seed_differs": ["prefill-0", "decode-0"],
    }
    assert doctor(*pair(prefill, large)) == {"block_size_differs": ["prefill-0", "decode-0"]}
    assert prefill.metric("pdgate_engine_kv_leases_expired_total") == 0
    assert doctor(*pair(decode, prefill)) == {"roles_crossed": ["prefill-0", "decode-0"]}


def test_mooncake_engines_are_only_looked_at_and_asked_alone(own_fleet: Fleet) -> None:
    protocol = ("--pdd-protocol", "vllm-mooncake")
    prefill = own_fleet.engine("prefill", "vllm-mooncake", "shm", "--engine-id", "mine")
    decode = own_fleet.engine("decode", "vllm-mooncake", "shm")
    where = f"role=prefill,url={prefill.url},kv={prefill.kv}"
    closed = f"role=prefill,url={prefill.url},kv=127.0.0.1:1"

    right = doctor("--instance", where, "--decode", decode.url, *protocol)
    wrong = doctor("--instance", closed, "--decode", decode.url, *protocol)

    assert right == {"pinned_engine_id": ["prefill-0"]}
    assert wrong == {"bootstrap_silent": ["prefill-0"]}
