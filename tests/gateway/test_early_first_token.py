"""A stream that begins with prefill's token ends with decode's answer or with an error, by each front end."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pdgate.protocols import sse
from pdgate.protocols.instance import Role
from tests.support.answers import streamed
from tests.support.fleet import (
    LAST_CHUNK,
    PATIENCE_SECONDS,
    STREAM_HEAD,
    Engine,
    Gateway,
    Held,
    HeldCall,
    ask,
    engine_error,
    gateway_of,
)
from tests.support.raw_server import chunk

pytestmark = [
    pytest.mark.usefixtures("front_end"),
    pytest.mark.parametrize("front_end", ["asgi", "hot", "hypercorn"], indirect=True),
]

TOKEN = b'"content":"a"'
ANSWER = streamed("a", "b")


class Begun:
    """A call of which the client has prefill's token, and decode has said nothing."""

    def __init__(self, gateway: Gateway, call: HeldCall, reader: asyncio.StreamReader) -> None:
        self.gateway = gateway
        self.call = call
        self._reader = reader
        self.head = b""

    async def begin(self) -> None:
        self.head = await self._reader.readuntil(TOKEN)
        self.head += await self._reader.readuntil(b"\n\n")

    async def rest(self) -> bytes:
        """To the end of the answer."""
        return await self._reader.readuntil(LAST_CHUNK)


@asynccontextmanager
async def begun() -> AsyncIterator[Begun]:
    held = Held()
    engines = Engine(Role.PREFILL), Engine(Role.DECODE, held)
    async with (
        gateway_of(*engines, early_first_token=True) as gateway,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        reader, writer = await gateway.wire()
        writer.write(ask(stream=True, temperature=0))
        found = Begun(gateway, await held.next(), reader)
        await found.begin()
        yield found


async def test_the_rest_is_decodes() -> None:
    async with begun() as it:
        await it.call.peer.send(STREAM_HEAD, *map(chunk, ANSWER), LAST_CHUNK)

        rest = await it.rest()

        assert it.head.startswith(b"HTTP/1.1 200 ")
        assert b"content-type: text/event-stream" in it.head
        assert it.head.count(b'"role"') == 1
        assert rest.count(b'"role"') == rest.count(TOKEN) == 0
        assert [rest.count(event) for event in ANSWER[2:]] == [1, 1, 1]
        assert rest.count(b"data: ") == 3


def errors(rest: bytes) -> list[object]:
    lines = [line for line in rest.split(b"\n") if line.startswith(b'data: {"error"')]
    return [json.loads(line.removeprefix(b"data: "))["error"]["code"] for line in lines]


@pytest.mark.parametrize(
    "said",
    [
        engine_error(b"500 Internal Server Error", "no"),
        engine_error(b"400 Bad Request", "max_tokens is too large"),
        STREAM_HEAD + b"".join(map(chunk, streamed("x", "b"))) + LAST_CHUNK,
        STREAM_HEAD + b"".join(map(chunk, [ANSWER[0], ANSWER[-2], sse.DONE])) + LAST_CHUNK,
        b"",
    ],
    ids=["fails", "refuses", "says another token", "says nothing", "closes"],
)
async def test_what_is_not_decodes_answer_ends_with_an_error(said: bytes) -> None:
    async with begun() as it:
        await it.call.peer.send(said)
        await it.call.peer.close()

        rest = await it.rest()

        assert len(errors(rest)) == 1
        assert sse.DONE not in rest
        assert b'"content":"' not in rest


async def test_an_answer_that_breaks_off_later_does_too() -> None:
    async with begun() as it:
        await it.call.peer.send(STREAM_HEAD, *map(chunk, ANSWER[:3]))
        await it.call.peer.close()

        rest = await it.rest()

        assert rest.count(b'"content":"b"') == 1
        assert len(errors(rest)) == 1


async def test_decodes_leg_ends_with_a_client_that_leaves() -> None:
    async with begun() as it:
        it.gateway.writers[0].close()

        await it.call.left
