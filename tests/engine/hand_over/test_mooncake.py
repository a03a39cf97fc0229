"""What vllm-mooncake has of its own."""

from dataclasses import replace

import pytest

from tests.support.engine_pair import D_BLOCKS, DIALECTS, Start, prefill
from tests.support.fake_core import SECONDS


@pytest.mark.parametrize("dialect", [d for d in DIALECTS if d.startswith("vllm-mooncake")])
def test_mooncake_keeps_nothing_of_a_prompt_that_stopped_by_itself(
    dialect: str, start: Start
) -> None:
    pair = start(dialect)

    assert prefill(pair, finish_reason="stop") is None

    assert pair.p.freed.get(timeout=SECONDS) == "p1"
    if not pair.serial:
        pair.d.load(pair.to_decode(), D_BLOCKS)
        error = pair.d.result()
        assert error is not None
        assert error.startswith("expired: the request finished by 'stop'")


@pytest.mark.parametrize("dialect", ["vllm-mooncake c", "vllm-mooncake d"])
def test_mooncake_checks_the_engine_id(dialect: str, start: Start) -> None:
    pair = start(dialect)
    prefill(pair)
    to_decode = pair.to_decode()
    wrong = {**(to_decode.params or {}), "remote_engine_id": "an earlier one"}

    pair.d.load(replace(to_decode, params=wrong), D_BLOCKS)

    error = pair.d.result()
    assert error is not None
    assert error.startswith("wrong engine")
