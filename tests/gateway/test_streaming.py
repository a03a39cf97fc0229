"""What decode streams is what the client gets, as soon as it comes."""

import asyncio
import json

import pytest

from pdgate.protocols.instance import Role
from tests.support.fleet import (
    LAST_CHUNK,
    PATIENCE_SECONDS,
    STREAM_HEAD,
    Engine,
    Held,
    ask,
    gateway_of,
    says,
    streams,
)
from tests.support.raw_server import chunk, reply

pytestmark = [
    pytest.mark.usefixtures("front_end"),
    pytest.mark.parametrize("front_end", ["asgi", "hot", "hypercorn"], indirect=True),
]

FIRST = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
ODD = (
    FIRST,
    b": a comment\n\n",
    b'data: {"zz":1.0, "choices":[{"delta":{"content":"\xc3\xa9\\u00e9"}}]}\r\n\r\n',
    b"event: odd\ndata: x\ndata: y\n\n",
    b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n',
    b"data: [DONE]\n\n",
)


async def test_a_stream_arrives_unchanged() -> None:
    async with gateway_of(Engine(Role.PREFILL), Engine(Role.DECODE, streams(*ODD))) as gateway:
        answer = await gateway.chat(stream=True)

        assert answer.status_code == 200
        assert answer.content == b"".join(ODD)
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.headers["x-request-id"]


async def test_an_answer_that_is_no_stream_arrives_unchanged() -> None:
    body = json.dumps(
        {"choices": [{"finish_reason": "stop"}], "zz": 1.0, "text": "\xe9" * 300_000}
    ).encode()
    for said in (
        reply(body, b"200 OK", b"content-type: application/json", b"server: engine"),
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        + chunk(body)
        + LAST_CHUNK,
    ):
        async with gateway_of(Engine(Role.PREFILL), Engine(Role.DECODE, says(said))) as gateway:
            answer = await gateway.chat()

            assert answer.content == body
            assert answer.headers["content-type"] == "application/json"
            assert "server" not in answer.headers


async def test_the_status_line_waits_for_decode() -> None:
    held = Held()
    engines = Engine(Role.PREFILL), Engine(Role.DECODE, held)
    async with gateway_of(*engines) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.wire()
        writer.write(ask(stream=True))
        call = await held.next()
        reading = asyncio.create_task(reader.read(1 << 16))
        await call.peer.send(STREAM_HEAD)
        # Whatever has been sent would have arrived by the time another call is answered.
        assert (await gateway.http.get("/health")).status_code == 200
        assert not reading.done()

        await call.peer.send(chunk(FIRST))

        assert (await reading).startswith(b"HTTP/1.1 200 ")


async def test_the_head_and_the_first_event_leave_in_one_write() -> None:
    held = Held()
    engines = Engine(Role.PREFILL), Engine(Role.DECODE, held)
    async with gateway_of(*engines) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        for _ in range(20):
            reader, writer = await gateway.wire()
            writer.write(ask(stream=True))
            call = await held.next()
            await call.peer.send(STREAM_HEAD, chunk(FIRST))

            first_read = await reader.read(1 << 16)

            assert first_read.startswith(b"HTTP/1.1 200 ")
            assert first_read.endswith(chunk(FIRST))


async def test_every_event_is_passed_on_before_the_next_one_is_there() -> None:
    held = Held()
    engines = Engine(Role.PREFILL), Engine(Role.DECODE, held)
    async with gateway_of(*engines) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.wire()
        writer.write(ask(stream=True))
        call = await held.next()
        await call.peer.send(STREAM_HEAD)
        for number in range(50):
            event = b'data: {"choices": [{"text": "%d"}]}\n\n' % number
            await call.peer.send(chunk(event))
            said = await reader.readuntil(event + b"\r\n")

            assert number == 0 or said == chunk(event)


async def test_the_role_chunk_alone_does_not_commit_the_answer() -> None:
    """Engines send it before they know whether the call goes well."""
    role = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    held = Held()
    decode = Engine(Role.DECODE, held)
    async with gateway_of(Engine(Role.PREFILL), decode) as gateway:
        asking = asyncio.create_task(gateway.chat(stream=True))
        call = await held.next()
        await call.peer.send(STREAM_HEAD, chunk(role))
        decode.script = streams(role, *ODD)
        await call.peer.abort()
        answer = await asking

        assert answer.content == role + b"".join(ODD)
        assert len(decode.calls) == 2
