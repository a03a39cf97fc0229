"""Engines that sleep, or let a call go for want of room: not now is no failure."""

import json

import pytest

from pdgate.protocols import sse
from pdgate.protocols.instance import Role
from tests.gateway.test_health import state
from tests.gateway.test_resuming import OPENING, rest, said
from tests.support.fleet import (
    LAST_CHUNK,
    STREAM_HEAD,
    Engine,
    Gateway,
    as_json,
    ask,
    gateway_of,
    says,
    streams,
)
from tests.support.raw_server import Peer, reply
from tests.support.waiting import until

ASLEEP = as_json({"is_sleeping": True})
AWAKE = as_json({"is_sleeping": False})
LET_GO = {"finish_reason": "stop", "stop_reason": "recomputed"}


async def becomes(gateway: Gateway, instance: str, *wanted: str) -> None:
    async def found() -> bool:
        return await state(gateway, instance) in wanted

    await until(found, f"{instance} to be {wanted}")


async def test_an_engine_that_sleeps_gets_no_calls_until_it_wakes() -> None:
    """vLLM's /health answers 200 all the while, and calls would wait there."""
    sleeper, other = Engine(Role.PLAIN), Engine(Role.PLAIN)
    async with gateway_of(sleeper, other) as gateway:
        await becomes(gateway, "plain-0", "up")
        sleeper.probes["/is_sleeping"] = ASLEEP
        await becomes(gateway, "plain-0", "asleep")
        for _ in range(4):
            assert (await gateway.chat()).status_code == 200
        assert not sleeper.calls

        other.probes["/is_sleeping"] = ASLEEP
        await becomes(gateway, "plain-1", "asleep")
        answer = await gateway.chat()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_instance")
        assert answer.headers["retry-after"]

        sleeper.probes["/is_sleeping"] = AWAKE
        await becomes(gateway, "plain-0", "up", "slow_start")
        assert (await gateway.chat()).status_code == 200
        assert sleeper.calls
        ejections = [
            value
            for key, value in (await gateway.metrics()).items()
            if key[0] == "pdgate_instance_ejections_total"
        ]
        assert not any(ejections)


@pytest.mark.parametrize(
    "said", [reply(b"yes"), as_json({"is_sleeping": "so"}), as_json([]), reply(b"", b"500 Oh")]
)
async def test_an_engine_that_says_something_else_is_awake(said: bytes) -> None:
    engine = Engine(Role.PLAIN)
    engine.probes["/is_sleeping"] = said
    async with gateway_of(engine) as gateway:
        await becomes(gateway, "plain-0", "up")
        assert (await gateway.chat()).status_code == 200


def choice(text: str) -> dict[str, object]:
    return {"index": 0, "message": {"content": text}, **LET_GO}


def delta(text: str) -> bytes:
    return sse.event({"choices": [{"index": 0, "delta": {"content": text}, **LET_GO}]})


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_an_engine_lets_go_is_served_by_another(stream: bool) -> None:
    """Its finish_reason is stop: half an answer would have passed for a whole one."""
    full, other = Engine(Role.PLAIN), Engine(Role.PLAIN)
    full.script = (
        streams(delta(""), sse.DONE) if stream else says(as_json({"choices": [choice("h")]}))
    )
    if stream:
        good = {"choices": [{"index": 0, "delta": {"content": "abc"}, "finish_reason": "stop"}]}
        other.script = streams(sse.event(good), sse.DONE)
    async with gateway_of(full, other) as gateway:
        for _ in range(8):
            answer = await gateway.chat(stream=stream)
            assert answer.status_code == 200
            assert "abc" in answer.text
            assert "recomputed" not in answer.text
        assert full.calls
        # It is full, which is no failure.
        assert await state(gateway, "plain-0") == "up"


async def test_a_stream_that_is_let_go_ends_with_an_error() -> None:
    begun = sse.event(
        {"choices": [{"index": 0, "delta": {"content": "half"}, "finish_reason": None}]}
    )
    async with gateway_of(Engine(Role.PLAIN, streams(begun, delta(""), sse.DONE))) as gateway:
        answer = await gateway.chat(stream=True)

        assert "half" in answer.text
        assert "engine_overloaded" in answer.text
        assert "[DONE]" not in answer.text


async def test_a_stream_that_is_let_go_is_gone_on_with_elsewhere() -> None:
    async def lets_go(peer: Peer) -> None:
        if json.loads(peer.request.body).get("messages"):
            events = OPENING, said("a", 3), delta(""), sse.DONE
            await streams(*events)(peer)
        else:
            await streams(rest("b", 4, finish="stop"), sse.DONE)(peer)

    decodes = [Engine(Role.DECODE, lets_go) for _ in "ab"]
    async with gateway_of(Engine(Role.PREFILL), *decodes, resume=True) as gateway:
        reader, writer = await gateway.wire()
        writer.write(ask(stream=True))
        answer = await reader.readuntil(LAST_CHUNK)

        assert answer.startswith(STREAM_HEAD[:12])
        assert answer.count(b"[DONE]") == 1
        assert b"recomputed" not in answer
        assert answer.index(b'"a"') < answer.index(b'"b"')


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_may_be_the_word(stream: bool) -> None:
    script = streams(delta("x"), sse.DONE) if stream else says(as_json({"choices": [choice("x")]}))
    async with gateway_of(Engine(Role.PLAIN, script)) as gateway:
        answer = await gateway.chat(stream=stream, stop=["recomputed"])

        assert answer.status_code == 200
        assert '"x"' in answer.text
