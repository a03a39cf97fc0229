"""A stream that has nothing to say sends comments, where a client can take them."""

import asyncio
from contextlib import suppress

import pytest

from pdgate.gateway.config.sections import TimeoutsSection
from pdgate.gateway.front.pings import PING, Pings
from pdgate.protocols.apis import RESPONSES
from pdgate.protocols.instance import Role
from pdgate.protocols.sse import MAX_EVENT_BYTES
from tests.support.answers import usage
from tests.support.fleet import (
    JSON_TYPE,
    LAST_CHUNK,
    PATIENCE_SECONDS,
    STREAM_HEAD,
    Engine,
    Held,
    ask,
    gateway_of,
    post,
)
from tests.support.raw_server import chunk

pytestmark = pytest.mark.usefixtures("front_end")

EVENT = b'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}\n\n'
OFTEN = TimeoutsSection(ping_seconds=0.01)


@pytest.mark.parametrize("event", [EVENT, EVENT.replace(b"\n", b"\r\n")], ids=["LF", "CRLF"])
async def test_a_silent_stream_is_kept_alive_and_goes_on(event: bytes) -> None:
    decode = Held()
    engines = Engine(Role.PREFILL), Engine(Role.DECODE, decode)
    async with gateway_of(*engines, timeouts=OFTEN) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.wire()
        writer.write(ask(stream=True))
        call = await decode.next()
        await call.peer.send(STREAM_HEAD + chunk(event))
        await reader.readuntil(chunk(event))

        assert await reader.readexactly(len(chunk(PING)) * 2) == chunk(PING) * 2

        await call.peer.send(chunk(event) + chunk(b"data: [DONE]\n\n") + LAST_CHUNK)
        rest = await reader.readuntil(LAST_CHUNK)
        assert rest.replace(chunk(PING), b"").count(event) == 1


async def test_an_error_behind_a_comment_is_numbered_after_the_last_event() -> None:
    held = Held()
    created = (
        b'event: response.created\ndata: {"type": "response.created", "sequence_number": 0}\n\n'
    )
    delta = b'data: {"type": "response.output_text.delta", "sequence_number": 7, "delta": "a"}\n\n'
    async with gateway_of(Engine(Role.PLAIN, held), timeouts=OFTEN) as gateway:
        async with asyncio.timeout(PATIENCE_SECONDS):
            reader, writer = await gateway.wire()
            body = b'{"model": "m", "input": "hi", "stream": true}'
            writer.write(post(body, JSON_TYPE, path=RESPONSES))
            call = await held.next()
            await call.peer.send(STREAM_HEAD + chunk(created) + chunk(delta))
            await reader.readuntil(delta)
            await reader.readuntil(PING)
            await call.peer.abort()

            assert b'"sequence_number":8' in await reader.readuntil(LAST_CHUNK)


async def test_usage_is_found_before_a_comment() -> None:
    held = Held()
    async with gateway_of(Engine(Role.PLAIN, held), timeouts=OFTEN) as gateway:
        async with asyncio.timeout(PATIENCE_SECONDS):
            reader, writer = await gateway.wire()
            writer.write(ask(stream=True))
            call = await held.next()
            await call.peer.send(STREAM_HEAD + chunk(EVENT) + chunk(usage(3)))
            await reader.readuntil(usage(3))
            await reader.readuntil(PING)
            await call.peer.send(chunk(b"data: [DONE]\n\n") + LAST_CHUNK)
            await reader.readuntil(LAST_CHUNK)

        assert (await gateway.metrics())["pdgate_tokens_total", "generated", "m"] == 3


async def test_no_comment_gets_into_the_middle_of_an_event() -> None:
    # Longer than what is held back of an event that has only begun.
    long = b'data: {"choices": [{"text": "' + b"a" * (MAX_EVENT_BYTES + (1 << 20))
    decode = Held()
    engines = Engine(Role.PREFILL), Engine(Role.DECODE, decode)
    async with gateway_of(*engines, timeouts=OFTEN) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.wire()
        writer.write(ask(stream=True))
        call = await decode.next()
        await call.peer.send(STREAM_HEAD + chunk(EVENT) + chunk(long))
        got = b""
        while len(got) <= MAX_EVENT_BYTES:
            got += await reader.read(1 << 20)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                while True:
                    got += await reader.read(1 << 20)
        # Before it begins there may be one, where the engine was silent for so long.
        assert PING not in got[got.index(b'{"text"') :]


async def test_an_answer_that_is_no_stream_gets_no_comments() -> None:
    decode = Held()
    body = b'{"choices": [{"finish_reason": "stop"}]}'
    head = b"HTTP/1.1 200 OK\r\n%b\r\ncontent-length: %d\r\n\r\n" % (JSON_TYPE, len(body))
    engines = Engine(Role.PREFILL), Engine(Role.DECODE, decode)
    async with gateway_of(*engines, timeouts=OFTEN) as gateway:
        asking = asyncio.create_task(gateway.chat())
        call = await decode.next()
        await call.peer.send(head + body[:5])
        await asyncio.wait({asking}, timeout=0.4)
        await call.peer.send(body[5:])

        assert (await asking).content == body


class Silent:
    """A stream that says nothing; `twice` is set when that was noticed so often."""

    seconds = due = 0.0
    seen = False

    def __init__(self, pings: Pings) -> None:
        self.times = 0
        self.twice = asyncio.Event()
        self._pings = pings

    def expired(self) -> None:
        self.times += 1
        assert self._pings.silences is not None
        self._pings.silences.watch(self, self.seconds)
        if self.times == 2:
            self.twice.set()


async def test_a_stream_is_watched_again_after_each_silence_and_not_when_it_is_over() -> None:
    pings = Pings(0.01)
    silences, over, other = pings.begin(), Silent(pings), Silent(pings)
    silences.watch(over, pings.seconds)
    await asyncio.wait_for(over.twice.wait(), PATIENCE_SECONDS)
    silences.forget(over)
    until_then = over.times

    silences.watch(other, pings.seconds)
    await asyncio.wait_for(other.twice.wait(), PATIENCE_SECONDS)

    assert over.times == until_then
    silences.close()
