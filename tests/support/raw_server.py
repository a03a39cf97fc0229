"""An engine that does what its script says, byte by byte, on a real socket.

async def script(peer: Peer) -> None:         # once for each request
    await peer.send(reply(b'{"a": 1}'))

async with raw_server(script) as server:
    ... server.url, server.requests
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from pdgate.cluster.accepting import stop_accepting


@dataclass(frozen=True, slots=True)
class Request:
    """
    Attributes:
        line: The request line.
        headers: Names in lower case, in order.
        connection: Number of the connection that it came on, from 0.
    """

    line: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    connection: int

    def header(self, name: bytes) -> bytes | None:
        """Its value; a header that came twice is an error."""
        values = [value for each, value in self.headers if each == name]
        assert len(values) < 2, values
        return values[0] if values else None


class Peer:
    """The engine's end of a connection that has just sent a request."""

    def __init__(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.request = request
        self._reader = reader
        self._writer = writer

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self._writer.write(piece)
            await self._writer.drain()

    async def close(self) -> None:
        """Sends what is written, then FIN."""
        self._writer.close()

    async def abort(self) -> None:
        self._writer.transport.abort()

    async def gone(self) -> None:
        """Waits until the gateway has closed the connection."""
        try:
            while await self._reader.read(1 << 16):
                pass
        except ConnectionError:
            return


Script = Callable[[Peer], Awaitable[None]]


@dataclass
class RawServer:
    """
    Attributes:
        stop: Accepts no further connection.
    """

    url: str
    stop: Callable[[], None]
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    failures: list[Exception] = field(default_factory=list)


def reply(body: bytes, status: bytes = b"200 OK", *headers: bytes) -> bytes:
    lines = [b"HTTP/1.1 " + status, b"content-length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def chunked(*pieces: bytes, kind: bytes = b"text/event-stream") -> bytes:
    """A whole streamed answer."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n" % kind
    return head + b"".join(map(chunk, pieces)) + b"0\r\n\r\n"


def chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


@asynccontextmanager
async def raw_server(
    script: Script, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[RawServer]:
    """Serves until the block ends; what a script raised is raised there."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, server.connections = server.connections, server.connections + 1
        try:
            while (request := await _read_request(reader, number)) is not None:
                server.requests.append(request)
                await script(Peer(request, reader, writer))
        except ConnectionError:
            # The gateway left; what it should do is the test's business.
            return
        # A task of the server has no caller: the end of the block raises it.
        except Exception as error:  # noqa: BLE001
            server.failures.append(error)

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not listener.is_serving():
            # It had come before the end; a loop with an open connection cannot be closed.
            writer.transport.abort()
            return
        task = asyncio.create_task(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        # Not in the task itself: one that is cancelled before its first step does nothing at all.
        task.add_done_callback(lambda _: writer.close())

    listener = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    port = listener.sockets[0].getsockname()[1]
    server = RawServer(f"{'https' if tls else 'http'}://127.0.0.1:{port}", listener.close)
    try:
        yield server
    finally:
        await stop_accepting(listener)
        for task in list(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
    if server.failures:
        raise server.failures[0]


async def _read_request(reader: asyncio.StreamReader, connection: int) -> Request | None:
    """None where the gateway left before it was whole."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        line, *rest = head[:-4].split(b"\r\n")
        headers = []
        for each in rest:
            name, _, value = each.partition(b": ")
            headers.append((name.lower(), value))
        if dict(headers).get(b"transfer-encoding") == b"chunked":
            return Request(line, headers, await _chunks(reader), connection)
        length = int(dict(headers).get(b"content-length", b"0"))
        return Request(line, headers, await reader.readexactly(length), connection)
    except asyncio.IncompleteReadError:
        return None


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    """Of a body whose length is not said: none of ours, but data planes send such."""
    body = b""
    while length := int(await reader.readuntil(b"\r\n"), 16):
        body += (await reader.readexactly(length + 2))[:-2]
    await reader.readuntil(b"\r\n")
    return body
