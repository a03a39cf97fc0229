"""A client that does not read holds its engine back, and the gateway holds little for it."""

import asyncio
import socket

import pytest

from pdgate.protocols.instance import Role
from tests.support.fleet import (
    LAST_CHUNK,
    PATIENCE_SECONDS,
    STREAM_HEAD,
    Engine,
    ask,
    gateway_of,
)
from tests.support.raw_server import Peer, chunk

pytestmark = pytest.mark.usefixtures("front_end")

PIECE = b"data: " + b"x" * 32_000 + b"\n\n"
END = b'data: {"choices": [{"finish_reason": "stop"}]}\n\n'
PIECES = 3000
"""About 96 MB: more than sockets and buffers of three parties take together."""

HELD_BYTES = 24 << 20
"""What loopback sockets take here is several megabytes each; it does not grow with time."""


class Flood:
    """Sends as fast as it is let; `sent` tells how far it got."""

    def __init__(self) -> None:
        self.sent = 0
        self.began = asyncio.Event()
        self.ended = asyncio.Event()

    async def __call__(self, peer: Peer) -> None:
        await peer.send(STREAM_HEAD)
        framed = chunk(PIECE)
        for _ in range(PIECES):
            await peer.send(framed)
            self.sent += len(framed)
            self.began.set()
        await peer.send(chunk(END) + LAST_CHUNK)
        self.ended.set()

    async def stuck(self) -> int:
        """How far it is when it gets no further."""
        await self.began.wait()
        before = -1
        while before != self.sent:
            before = self.sent
            # There is no event for what does not happen.
            await asyncio.sleep(0.3)
        return before


@pytest.mark.parametrize("protocol", ["vllm-nixl", "sglang"])
async def test_a_client_that_does_not_read_holds_its_engine_back(protocol: str) -> None:
    flood = Flood()
    engines = Engine(Role.PREFILL), Engine(Role.DECODE, flood)
    async with (
        gateway_of(*engines, pdd_protocol=protocol) as gateway,
        asyncio.timeout(PATIENCE_SECONDS * 2),
    ):
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        raw.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(raw, ("127.0.0.1", gateway.port))
        reader, writer = await asyncio.open_connection(sock=raw, limit=64 << 10)
        writer.write(ask(stream=True))

        sent = await flood.stuck()
        assert 0 < sent < HELD_BYTES

        # Others are served meanwhile, and the reader gets every byte.
        assert (await gateway.http.get("/health")).status_code == 200
        await reader.readuntil(b"\r\n\r\n")
        found = 0
        while (line := await reader.readline()) != b"0\r\n":
            body = await reader.readexactly(int(line, 16) + 2)
            assert not body[:-2].removesuffix(END).strip(b"data: x\n")
            found += len(body) - 2
        assert found == PIECES * len(PIECE) + len(END)
        assert flood.ended.is_set()
        writer.close()


async def test_a_client_that_leaves_unread_ends_its_engine() -> None:
    flood = Flood()
    async with gateway_of(Engine(Role.PREFILL), Engine(Role.DECODE, flood)) as gateway:
        reader, writer = await gateway.wire()
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(ask(stream=True))
        await flood.stuck()
        writer.transport.abort()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await gateway.metrics())["pdgate_calls_in_flight",]:
                pass

        assert not flood.ended.is_set()
