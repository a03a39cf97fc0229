"""What the wire itself costs in a run, to be taken off what the others took.

It sends each engine a request made beforehand and passes on, unread, what decode answers: as
many writes and arrivals as the others have, and nothing in between.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

from benchmarks.guard.memory_wire import HOST, Client
from benchmarks.guard.scenarios import KV, PATH, written
from benchmarks.guard.still_loop import StillLoop

PORT, PREFILL_PORT, DECODE_PORT = 8200, 9001, 9003
_TO_PREFILL = {"kv_transfer_params": {"do_remote_decode": True}}


@asynccontextmanager
async def bare_wire(loop: StillLoop) -> AsyncIterator[Client]:
    wire = BareWire()
    prefill, decode = Far(wire.prefilled), Far(wire.decoded)
    await loop.create_connection(lambda: prefill, HOST, PREFILL_PORT)
    await loop.create_connection(lambda: decode, HOST, DECODE_PORT)
    wire.prefill, wire.decode = prefill.transport, decode.transport
    yield Client(loop, wire, PORT)


class Far(asyncio.Protocol):
    """A connection to an engine."""

    transport: asyncio.Transport

    def __init__(self, told: Callable[[bytes], None]) -> None:
        self._told = told

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._told(data)


class BareWire(asyncio.Protocol):
    """A client's connection."""

    prefill: asyncio.Transport
    decode: asyncio.Transport

    def __init__(self) -> None:
        self._made: dict[bytes, tuple[bytes, bytes]] = {}
        self._to_decode = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._client = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        # The client sends the same object again and again, and that has its hash already.
        made = self._made.get(data) or self._make(data)
        to_prefill, self._to_decode = made
        self.prefill.write(to_prefill)

    def prefilled(self, _: bytes) -> None:
        self.decode.write(self._to_decode)

    def decoded(self, piece: bytes) -> None:
        self._client.write(piece)

    def _make(self, data: bytes) -> tuple[bytes, bytes]:
        call = json.loads(data.partition(b"\r\n\r\n")[2])
        both = _request({**call, **_TO_PREFILL}), _request({**call, "kv_transfer_params": KV})
        self._made[data] = both
        return both


def _request(body: object) -> bytes:
    sent = written(body)
    return b"POST %b HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (PATH.encode(), len(sent)) + sent
