"""Calls that begin alike go to the engines that have read the beginning."""

from collections.abc import Sequence
from typing import Any

from pdgate.protocols.instance import Role
from tests.support.fleet import Engine, engine_error, gateway_of, says

SYSTEM = {"role": "system", "content": "You know this manual by heart. " * 400}
BY_PREFIX = {"prefill_policy": "prefix_then_load", "decode_policy": "prefix_then_load"}


def asks(text: str) -> list[dict[str, Any]]:
    return [SYSTEM, {"role": "user", "content": text}]


def asked(engines: Sequence[Engine]) -> list[int]:
    return [len(engine.calls) for engine in engines]


async def test_calls_that_begin_alike_meet_where_the_first_was_read() -> None:
    prefills = [Engine(Role.PREFILL) for _ in range(4)]
    decodes = [Engine(Role.DECODE) for _ in range(4)]
    async with gateway_of(*prefills, *decodes, **BY_PREFIX) as gateway:
        for number in range(8):
            answer = await gateway.chat(messages=asks(f"Question {number}?"))
            assert answer.status_code == 200
        shown = await gateway.metrics()

    assert sorted(asked(prefills)) == sorted(asked(decodes)) == [0, 0, 0, 8]
    cached = shown["pdgate_prompt_tokens_total", "cached"]
    assert cached > 0.8 * (cached + shown["pdgate_prompt_tokens_total", "uncached"])
    assert shown["pdgate_prefix_index_blocks",] >= 24
    assert shown["pdgate_prefix_index_bytes",] > 0


async def test_an_engine_that_fails_is_not_believed_to_have_read_anything() -> None:
    bad, good = Engine(Role.PREFILL), Engine(Role.PREFILL)
    bad.script = good.script = says(engine_error(b"500 Internal Server Error", "no"))
    decode = Engine(Role.DECODE)
    settings = {**BY_PREFIX, "on_prefill_failure": "retry", "health": {"max_failures": 0}}
    async with gateway_of(bad, good, decode, **settings) as gateway:
        assert (await gateway.chat(messages=asks("One?"))).status_code == 502
        assert asked([bad, good]) == [1, 1]
        shown = await gateway.metrics()

    assert shown["pdgate_prefix_index_blocks",] == 0
    assert shown["pdgate_prompt_tokens_total", "uncached"] == 0


async def test_nothing_is_counted_where_no_policy_asks() -> None:
    engines = Engine(Role.PREFILL), Engine(Role.DECODE)
    simple = dict.fromkeys(("prefill_policy", "decode_policy", "plain_policy"), "least_loaded")
    async with gateway_of(*engines, **simple) as gateway:
        assert (await gateway.chat(messages=asks("One?"))).status_code == 200
        shown = await gateway.metrics()

    assert shown["pdgate_prefix_index_blocks",] == shown["pdgate_prefix_index_bytes",] == 0
