"""Calls that an engine lets go for want of room, though it says that it has finished them."""

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
    as_json,
    ask,
    gateway_of,
    says,
    streams,
)
from tests.support.raw_server import Peer

LET_GO = {"finish_reason": "stop", "stop_reason": "recomputed"}


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
        # Which of two idle engines is asked is drawn: 64 times the same is one run in 10^19.
        for _ in range(64):
            answer = await gateway.chat(stream=stream)
            assert answer.status_code == 200
            assert "abc" in answer.text
            assert "recomputed" not in answer.text
            if full.calls:
                break
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
