"""pdgate doctor looks at stock vLLM: a right pair, and one that has no connector on a side."""

import json
import subprocess
import sys
from collections.abc import Mapping

import pytest

from tests.end_to_end.vllm.engines import NIXL, Engine, Pair

ASKED_FOR = frozenset({"hash_seed_differs", "leases_expired", "loads_failed", "read_late"})
"""Findings of what other tests do to these engines, and of vLLM's own default hashes."""

Findings = Mapping[str, list[str]]


def doctor(*args: str) -> Findings:
    command = [sys.executable, "-m", "pdgate", "doctor", *args, "--json", "--timeout", "120"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode in (0, 1), ran.stderr
    return {one["check"]: one["instances"] for one in json.loads(ran.stdout)["findings"]}


def test_a_right_pair_has_no_finding(pair: Pair) -> None:
    found = doctor(*pair.serve, "--pdd-protocol", pair.transfer.protocol)

    assert found.keys() <= ASKED_FOR


def test_a_side_without_a_connector_is_named(pair: Pair, alone: Engine) -> None:
    """An engine without one passes over kv_transfer_params, with a warning in its log."""
    if pair.transfer != NIXL:
        pytest.skip("only NIXL pairs are asked to hand over")
    protocol = ("--pdd-protocol", NIXL.protocol)

    as_decode = doctor("--prefill", pair.prefill.url, "--decode", alone.url, *protocol)
    as_prefill = doctor("--prefill", alone.url, "--decode", pair.decode.url, *protocol)

    # Its metrics say that it has none; an engine that does not say so shows it when it is asked.
    assert {"no_connector", "kv_not_taken"} & as_decode.keys()
    assert {"no_connector", "keeps_no_kv", "roles_crossed"} & as_prefill.keys()
