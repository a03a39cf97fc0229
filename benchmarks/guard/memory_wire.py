"""Connections within this process: engines that answer from a script, and a client.

    Client --arrive--> [ gateway or relay ] --write--> Engine
       ^----write-----                     ^--arrive-- (pieces made beforehand)

Nothing of it is worth measuring, so it does as little as it can, and both contenders pay for
it alike. Every answer that reaches the client is compared with what the engine sent.
"""

import asyncio
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from benchmarks.guard.still_loop import StillLoop

HOST = "127.0.0.1"
_CLIENT = (HOST, 40000)
_length = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE).search


class WrongAnswer(Exception):
    """A contender that does not do the work must not look fast."""


class _Socket:
    """What the prober's HTTP client asks of one."""

    family = socket.AF_INET

    def __init__(self, port: int) -> None:
        self._name = (HOST, port)

    def getsockname(self) -> tuple[str, int]:
        return self._name

    def getpeername(self) -> tuple[str, int]:
        return _CLIENT


class MemoryTransport(asyncio.Transport):
    """One end of a connection; what is written goes to `peer` at once."""

    def __init__(
        self, loop: StillLoop, port: int, protocol: Any, peer: Callable[[bytes], None]
    ) -> None:
        super().__init__({"peername": _CLIENT, "socket": _Socket(port)})
        self._loop = loop
        self._operations = loop.operations
        self._protocol = protocol
        self._peer = peer
        self._closing = False
        self._paused: list[bytes] | None = None

    def arrived(self, piece: bytes) -> None:
        if self._paused is not None:
            self._paused.append(piece)
        elif not self._closing:
            self._protocol.data_received(piece)

    def write(self, data: Any) -> None:
        self._operations.writes += 1
        self._peer(data)

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing waits to be written."""

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()

    def pause_reading(self) -> None:
        if self._paused is None:
            self._paused = []

    def resume_reading(self) -> None:
        waiting, self._paused = self._paused or (), None
        for piece in waiting:
            self._loop.arrive(self.arrived, piece)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol


class Script(Protocol):
    def __call__(self, request: bytes) -> Sequence[bytes]:
        """The pieces of the answer to a whole request, each arriving on its own."""


class Engines:
    """All engines, at whatever port they are asked for (a `Connect`)."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.loop: StillLoop

    def __call__(self, factory: Callable[[], Any], port: int) -> tuple[Any, Any]:
        protocol = factory()
        engine = _Engine(self._script, self.loop)
        engine.transport = MemoryTransport(self.loop, port, protocol, engine.asked)
        protocol.connection_made(engine.transport)
        return engine.transport, protocol


class _Engine:
    transport: MemoryTransport

    def __init__(self, script: Script, loop: StillLoop) -> None:
        self._script = script
        self._loop = loop
        self._read = b""

    def asked(self, piece: bytes) -> None:
        request = self._read + piece if self._read else piece
        head = request.find(b"\r\n\r\n")
        length = _length(request, 0, head + 2)
        if head < 0 or len(request) < head + 4 + (int(length[1]) if length else 0):
            self._read = request
            return
        self._read = b""
        for answer in self._script(request):
            self._loop.arrive(self.transport.arrived, answer)


class Client:
    """Asks one call after another on one connection."""

    def __init__(self, loop: StillLoop, protocol: Any, port: int) -> None:
        self._loop = loop
        self._transport = MemoryTransport(loop, port, protocol, self._answered)
        self._pieces: list[bytes] = []
        self._end = b""
        self._done: asyncio.Future[None]
        protocol.connection_made(self._transport)

    async def ask(self, request: bytes, end: bytes) -> bytes:
        """The answer, which is over with `end`."""
        self._end = end
        # Not of the loop, which counts those of the contender.
        self._done = asyncio.Future(loop=self._loop)
        self._loop.arrive(self._transport.arrived, request)
        await self._done
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)

    def _answered(self, piece: bytes) -> None:
        self._pieces.append(piece)
        if len(self._pieces) == 1 and not piece.startswith(b"HTTP/1.1 200 "):
            self._done.set_exception(WrongAnswer(repr(piece)))
        elif piece.endswith(self._end):
            self._done.set_result(None)


def unchunked(answer: bytes) -> bytes:
    """The body of a chunked answer. Raises WrongAnswer."""
    _, _, rest = answer.partition(b"\r\n\r\n")
    return b"".join(_chunks(rest))


def _chunks(rest: bytes) -> Iterator[bytes]:
    while True:
        size, _, rest = rest.partition(b"\r\n")
        try:
            length = int(size, 16)
        except ValueError:
            raise WrongAnswer(f"not a chunk: {size[:40]!r}") from None
        if not length:
            return
        yield rest[:length]
        rest = rest[length + 2 :]
