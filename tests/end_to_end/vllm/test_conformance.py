"""`pdgate conformance` over stock vLLM: what an operator runs finds nothing where nothing is wrong."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.end_to_end.vllm.engines import NIXL, Engine, Pair
from tests.end_to_end.vllm.gateway import Gateway

SECONDS = 900
HARMS_ENGINES = {"killed-engines", "late-decode"}
"""Asked of reference engines only."""
VLLM_ALONE_REFUSES = {"tools"}
"""Of a server that is started without a parser of tool calls."""


def conformance(pair: Pair, alone: Engine, gateway: Gateway) -> dict[str, dict[str, Any]]:
    """Check -> its result."""
    _, prefill = pair.serve[:2]
    command = [sys.executable, "-m", "pdgate", "conformance", "--json"]
    command += ["--pdd-protocol", pair.transfer.protocol, "--mode", gateway.mode]
    command += ["--prefill", prefill, "--decode", pair.decode.url]
    command += ["--alone", alone.url, "--gateway", gateway.url]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ran.returncode in (0, 1), ran.stderr
    return {one["id"]: one for one in json.loads(ran.stdout)["checks"]}


def test_stock_vllm_conforms(pair: Pair, alone: Engine, gateway: Gateway) -> None:
    if pair.transfer != NIXL:
        pytest.skip("the command takes a minute or more; it is asked of one stock connector")
    found = conformance(pair, alone, gateway)

    failed = [
        f"{check}: {one['reason']}" for check, one in found.items() if one["verdict"] == "fail"
    ]
    assert failed == []
    passed_over = {check for check, one in found.items() if one["verdict"] == "not applicable"}
    assert passed_over == HARMS_ENGINES | VLLM_ALONE_REFUSES
