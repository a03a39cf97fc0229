"""Time and memory: what an engine can make of its answers, and what that does to all others.

A gateway in a process of its own, in front of an engine that floods it in each way at once: calls take the floods in
turn. A socket that is full is read 32 times in a row, so what one read costs, all others wait for 32 times.
"""

import asyncio
import itertools
from collections.abc import Iterator

import pytest

from pdgate.protocols.instance import Role
from pdgate.protocols.sse import MAX_EVENT_BYTES
from tests.support.besieged import Besieged, at_once, besieged
from tests.support.fleet import PATIENCE_SECONDS, STREAM_HEAD, Engine, ask
from tests.support.raw_server import Peer, chunk

AT_ONCE = 8
PIECE_BYTES = 128 << 10
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"


def filled(event: bytes) -> bytes:
    return event * (PIECE_BYTES // len(event))


def stream(start: bytes, piece: bytes) -> tuple[bytes, bytes]:
    return STREAM_HEAD + start, chunk(filled(piece))


FIRST = chunk(b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n')
LONG = b'data: {"choices":[{"index":0,"text":"%b"}]}\n\n'
FLOODS: dict[str, tuple[bytes, bytes]] = {
    # What comes first, and what comes then, again and again.
    "blank lines": stream(FIRST, b"\n\n"),
    "blank lines, and no event": stream(b"", b"\n\n"),
    "comments": stream(FIRST, b": a comment that is a little longer\n\n"),
    "pings, and no event": stream(b"", b": a comment that is a little longer\n\n"),
    "events": stream(FIRST, LONG % b"a"),
    "events of two choices": stream(FIRST, b'data: {"choices":[{"index":0},{"index":1}]}\n\n'),
    "opening events": stream(b"", b'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n'),
    "chunks of a byte": (STREAM_HEAD, filled(b"1\r\n:\r\n")),
    "one event without an end": stream(b"", b"data: x"),
    "one event of many lines": stream(b"", b"data: x\n"),
    "one event with an error": stream(chunk(b'data: {"error":['), b"[],"),
    "one event of a million choices": stream(chunk(b'data: {"choices":['), b"{},"),
    "trailers": (STREAM_HEAD + FIRST + b"0\r\n", filled(b"a: b\r\n")),
    "one long trailer": (STREAM_HEAD + FIRST + b"0\r\na: ", filled(b"b")),
    "a long line of a chunk": (STREAM_HEAD + FIRST + b"1;a=", filled(b"b")),
    "headers": (b"HTTP/1.1 200 OK\r\n", filled(b"a: b\r\n")),
    "a long header": (b"HTTP/1.1 200 OK\r\na: ", filled(b"b")),
    "heads of nothing": (b"", filled(b"HTTP/1.1 100 Continue\r\n\r\n")),
    "whole answers of nothing": (b"", filled(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")),
    "a whole answer of lists": (
        JSON_HEAD + CHUNKED + chunk(b'{"choices":['),
        chunk(filled(b"[],")),
    ),
    "a whole answer of choices": (
        JSON_HEAD + CHUNKED + chunk(b'{"kv_transfer_params":1,"choices":['),
        chunk(filled(b'{"index":0,"finish_reason":"a"},')),
    ),
}


def flooding(floods: Iterator[tuple[bytes, bytes]]) -> Engine:
    async def script(peer: Peer) -> None:
        first, again = next(floods)
        await peer.send(first)
        while True:
            await peer.send(again)
            await asyncio.sleep(0)

    return Engine(Role.PLAIN, script)


async def reads(gateway: Besieged, streams: bool) -> None:
    """A client of the engine's, that takes all it gets."""
    reader, writer = await gateway.wire()
    try:
        writer.write(ask(stream=streams))
        while await reader.read(1 << 20):
            pass
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("flags", [(), ("--resume",)], ids=["as it is", "resumed"])
async def test_an_engine_that_floods_takes_no_time_from_others(
    flags: tuple[str, ...], seconds: float
) -> None:
    """Four streams of blank lines kept all others waiting for 47 s."""
    streams = itertools.cycle([True, True, True, False])
    # Its health is not what is asked here, and each flood counts as a failure of it.
    flags = (*flags, "--max-memory", str(600 << 20))
    async with besieged(flooding(itertools.cycle(FLOODS.values())), flags=flags) as gateway:
        async with gateway.watched() as watch:
            await at_once(AT_ONCE, lambda: reads(gateway, next(streams)), seconds)

        assert watch.slow_callbacks == []
        assert watch.bystander.answers > 0
        assert watch.bystander.longest_cpu_seconds < 0.2
        assert watch.peak_bytes <= 600 << 20
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await gateway.get("/health"))[0] == 200


HALVES = 100


async def test_halves_of_events_are_held_to_what_there_is() -> None:
    """Each stream may have half an event of 8 MiB; a hundred of them are not 800 MiB."""
    most = 400 << 20
    sent = 0
    done = asyncio.Event()

    async def half(peer: Peer) -> None:
        nonlocal sent
        piece = chunk(b"x" * PIECE_BYTES)
        try:
            await peer.send(STREAM_HEAD, FIRST)
            for _ in range((MAX_EVENT_BYTES - PIECE_BYTES) // PIECE_BYTES):
                await peer.send(piece)
        except ConnectionError:
            pass
        sent += 1
        if sent >= HALVES:
            done.set()
        await peer.gone()

    async def asks(gateway: Besieged) -> None:
        _, writer = await gateway.wire()
        writer.write(ask(stream=True))
        try:
            await asyncio.Event().wait()
        finally:
            writer.transport.abort()

    flags = ("--max-memory", str(most), "--prefix-index-bytes", str(1 << 20))
    async with besieged(Engine(Role.PLAIN, half), flags=flags) as gateway:
        async with gateway.watched() as watch, asyncio.TaskGroup() as group:
            asking = [group.create_task(asks(gateway)) for _ in range(HALVES)]
            async with asyncio.timeout(PATIENCE_SECONDS):
                await done.wait()
            for task in asking:
                task.cancel()

        assert watch.peak_bytes <= most
        assert watch.slow_callbacks == []
