"""What ZeroMQ's sockets send is heard; what would fill memory, or never end, ends its connection and no other."""

import asyncio
import gc
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import zmq
import zmq.asyncio

from pdgate.cluster.networks import Allowed
from pdgate.cluster.zmtp import listener, wire
from pdgate.cluster.zmtp.listener import ZmtpListener, ZmtpPeer
from pdgate.cluster.zmtp.wire import RefusalReason
from tests.support.waiting import PATIENCE_SECONDS, until
from tests.support.zmtp import COMMAND, GREETING, MORE, READY, frame

MOST_BYTES = 1000


class Site:
    def __init__(self, kind: str) -> None:
        self.heard: list[bytes] = []
        self.refused: list[RefusalReason] = []
        self.listener = ZmtpListener(
            "127.0.0.1", 0, kind, Allowed(), MOST_BYTES, self._heard, self.refused.append
        )

    def _heard(self, _: ZmtpPeer, parts: list[bytes]) -> None:
        self.heard.append(parts[-1])

    async def talk(self, *said: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.listener.port)
        writer.write(b"".join(said))
        return reader, writer


@asynccontextmanager
async def site(kind: str = "PULL") -> AsyncIterator[Site]:
    made = Site(kind)
    running = asyncio.create_task(made.listener.run())
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield made
    finally:
        running.cancel()
        await asyncio.wait((running,))
        made.listener.close()


async def ended(reader: asyncio.StreamReader) -> bytes:
    """What was said until the other side hung up."""
    said = bytearray()
    try:
        while piece := await reader.read(4096):
            said += piece
    except ConnectionError:
        pass
    return bytes(said)


@pytest.mark.parametrize(("kind", "peer"), [("PULL", zmq.PUSH), ("ROUTER", zmq.DEALER)])
async def test_sockets_of_zeromq_are_heard_and_their_pings_answered(kind: str, peer: int) -> None:
    """Of a message in parts the last one, as DEALER writes an empty one before it where it stands for REQ."""
    async with site(kind) as made:
        context = zmq.asyncio.Context()
        try:
            socket = context.socket(peer)
            # It hangs up where no PONG comes.
            socket.set(zmq.HEARTBEAT_IVL, 20)
            socket.set(zmq.HEARTBEAT_TIMEOUT, 2000)
            watching = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            socket.connect(f"tcp://127.0.0.1:{made.listener.port}")
            await socket.send(b"one")
            await socket.send_multipart([b"", b"two"])
            await socket.send(b"x" * MOST_BYTES)
            await until(lambda: len(made.heard) == 3, "all is heard")
            assert made.heard == [b"one", b"two", b"x" * MOST_BYTES]
            assert not await watching.poll(100)
        finally:
            context.destroy(linger=0)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([frame(MORE, b"x" * 10)] * 100_000, RefusalReason.TOO_LARGE),
        ([frame(MORE, b"")] * (wire.MOST_PARTS + 1), RefusalReason.TOO_LARGE),
        ([frame(MORE, b"x" * 600)] * 2, RefusalReason.TOO_LARGE),
        ([frame(0, b"x" * (MOST_BYTES + 1))], RefusalReason.TOO_LARGE),
        ([b"\2" + b"\xff" * 8], RefusalReason.TOO_LARGE),
        ([frame(COMMAND, b"x" * 1000)], RefusalReason.TOO_LARGE),
        ([b"\x08\0"], RefusalReason.MALFORMED),
        ([frame(MORE, b"x"), frame(COMMAND, b"\4PING\0\0")], RefusalReason.MALFORMED),
    ],
    ids=[
        "endless",
        "many-parts",
        "long-parts",
        "long",
        "huge",
        "long-command",
        "reserved",
        "command-within",
    ],
)
async def test_what_would_not_end_ends_its_connection(
    said: list[bytes], why: RefusalReason
) -> None:
    async with site() as made:
        _, other = await made.talk(GREETING, READY)
        reader, writer = await made.talk(GREETING, READY, *said)

        assert (await ended(reader)).startswith(GREETING[:10])
        await until(lambda: made.refused == [why], "it is counted")
        assert made.heard == []
        other.write(frame(0, b"next"))
        await until(lambda: made.heard == [b"next"], "others are heard")
        writer.close()
        other.close()


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" + bytes(64),
        GREETING.replace(b"NULL", b"CURV"),
        GREETING.replace(b"\x7f\3", b"\x7f\1"),
        GREETING + frame(0, b"READY"),
        GREETING + b"\4\5OTHER",
        GREETING,
    ],
)
async def test_what_does_not_speak_it_is_gone_soon(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "HANDSHAKE_SECONDS", 0.2)
    async with site() as made:
        reader, writer = await made.talk(said)

        await ended(reader)
        await until(lambda: made.refused == [RefusalReason.MALFORMED], "it is counted")
        writer.close()


async def test_a_message_that_has_begun_must_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that has not may take its time."""
    monkeypatch.setattr(wire, "MESSAGE_SECONDS", 0.2)
    async with site() as made:
        _, silent = await made.talk(GREETING, READY)
        reader, writer = await made.talk(GREETING, READY, frame(MORE, b"x"))

        await ended(reader)
        await until(lambda: made.refused == [RefusalReason.MALFORMED], "it is counted")
        silent.write(frame(0, b"late"))
        await until(lambda: made.heard == [b"late"], "it was not")
        writer.close()
        silent.close()


async def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MOST_AT_ONCE", 2)
    async with site() as made:
        first, second = await made.talk(GREETING, READY), await made.talk(GREETING, READY)
        for reader, writer in (first, second):
            await reader.readexactly(len(GREETING))
            writer.write(frame(0, b"in"))
        await until(lambda: len(made.heard) == 2, "both are in")

        reader, writer = await made.talk(GREETING, READY)
        assert await ended(reader) == b""
        assert made.refused == [RefusalReason.TOO_MANY]
        for _, one in (first, second):
            one.close()
        writer.close()


async def test_a_flood_has_its_share_of_time_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """All connections together, in turns: those that say little are heard among those that say much."""
    monkeypatch.setattr(listener, "MOST_FRAMES", 10)
    monkeypatch.setattr(listener, "FRAMES_SECONDS", 0.05)
    loop = asyncio.get_running_loop()
    async with site() as made:
        floods = [await made.talk(GREETING, READY, frame(0, b"much") * 500) for _ in range(3)]
        await until(lambda: b"much" in made.heard, "the flood has begun")
        began, before = loop.time(), len(made.heard)
        _, writer = await made.talk(GREETING, READY, frame(0, b"little"))
        await until(lambda: b"little" in made.heard, "it is heard")
        heard, seconds = len(made.heard) - before, loop.time() - began

        assert heard < 500
        assert heard <= 10 * (seconds / 0.05 + 2)
        for _, one in (*floods, (None, writer)):
            one.close()


async def test_it_can_be_run_again() -> None:
    """As a background job is that failed; its port stays its own meanwhile."""
    made = Site("PULL")
    for number in range(2):
        running = asyncio.create_task(made.listener.run())
        _, writer = await made.talk(GREETING, READY, frame(0, b"%d" % number))
        await until(lambda: len(made.heard) == number + 1, "it is heard")  # noqa: B023
        running.cancel()
        await asyncio.wait((running,))
        writer.close()
    made.listener.close()


@pytest.mark.parametrize("turns", range(6))
def test_a_peer_that_comes_as_it_ends_is_hung_up_on(turns: int) -> None:
    """In whichever turn of its loop."""
    made = Site("PULL")

    async def main() -> list[socket.socket]:
        running = asyncio.create_task(made.listener.run())
        reader, writer = await made.talk()
        writer.close()
        await ended(reader)
        peers = [socket.create_connection(("127.0.0.1", made.listener.port)) for _ in range(3)]
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait((running,))
        return peers

    peers = asyncio.run(main())
    made.listener.close()
    # A socket that was lost is a warning here.
    gc.collect()
    for peer in peers:
        peer.close()
