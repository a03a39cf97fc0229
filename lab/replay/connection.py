"""HTTP/1.1 to one server, by callback: no task, future or timer for each piece of an answer.

What drives a load must cost less than what it measures. A client made for comfort spends about as
much on an event as the gateway does; here it is a read, httptools' parser and a clock.
"""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, Self, cast
from urllib.parse import urlsplit

import httptools


class AnswerReader(Protocol):
    """Takes one answer."""

    def head(self, status: int) -> None: ...

    def body(self, chunk: bytes) -> None: ...


class AnswerLost(Exception):
    """No answer, or only a part of one; the message says how, in a few words."""


@dataclass(frozen=True, slots=True)
class ReplayServer:
    """
    Attributes:
        prefix: Of each path; "" or as in http://host/prefix.
    """

    host: str
    port: int
    tls: bool
    prefix: str
    authority: str

    @classmethod
    def of(cls, url: str) -> Self:
        """Raises ValueError."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no URL; it is of the form http://host:port")
        tls = parts.scheme == "https"
        port = parts.port or (443 if tls else 80)
        return cls(parts.hostname, port, tls, parts.path.rstrip("/"), parts.netloc)


class _Connection(asyncio.Protocol):
    """One exchange at a time."""

    def __init__(self) -> None:
        self.usable = False
        self._reader: AnswerReader | None = None
        self._over: asyncio.Future[None] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._keeps = False

    def ask(self, request: bytes, reader: AnswerReader) -> "asyncio.Future[None]":
        """Done when the answer is over; fails with Lost."""
        self._parser = httptools.HttpResponseParser(self)
        self._reader = reader
        self._over = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self._over

    def close(self) -> None:
        self.usable = False
        self.transport.abort()

    # of asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are no subclass of asyncio's.
        self.transport = cast(asyncio.Transport, transport)
        self.usable = True

    def data_received(self, data: bytes) -> None:
        if self._over is None:
            # No request was sent: whatever it is, it is not an answer.
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._end(AnswerLost("no HTTP"))
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.usable = False
        self._end(AnswerLost("connection lost"))

    # of httptools
    def on_headers_complete(self) -> None:
        assert self._reader is not None
        self._keeps = self._parser.should_keep_alive()
        self._reader.head(self._parser.get_status_code())

    def on_body(self, body: bytes) -> None:
        assert self._reader is not None
        self._reader.body(body)

    def on_message_complete(self) -> None:
        if not self._keeps:
            self.usable = False
        self._end(None)

    def _end(self, lost: AnswerLost | None) -> None:
        over, self._over = self._over, None
        if over is None or over.done():
            return
        if lost is None:
            over.set_result(None)
        else:
            over.set_exception(lost)


class ReplayClient:
    """Connections to one server, as many as there are calls at a time."""

    def __init__(
        self, server: ReplayServer, headers: Mapping[str, str], timeout_seconds: float
    ) -> None:
        self._server = server
        self._timeout_seconds = timeout_seconds
        self._idle: list[_Connection] = []
        self._tls = ssl.create_default_context() if server.tls else None
        lines = {"host": server.authority, "content-type": "application/json", **headers}
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in lines.items())

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def request(self, path: str, body: bytes) -> bytes:
        """The bytes of one, to be made before its time comes."""
        head = f"POST {self._server.prefix}{path} HTTP/1.1\r\n{self._headers}"
        return f"{head}content-length: {len(body)}\r\n\r\n".encode("latin-1") + body

    async def connection(self) -> _Connection:
        """One that is not in use. Raises AnswerLost."""
        while self._idle:
            if (found := self._idle.pop()).usable:
                return found
        server = self._server
        try:
            async with asyncio.timeout(self._timeout_seconds):
                _, made = await asyncio.get_running_loop().create_connection(
                    _Connection, server.host, server.port, ssl=self._tls
                )
        except TimeoutError:
            raise AnswerLost("timeout") from None
        except OSError:
            raise AnswerLost("connection refused") from None
        return made

    async def exchange(self, connection: _Connection, request: bytes, reader: AnswerReader) -> None:
        """Raises AnswerLost."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await connection.ask(request, reader)
        except TimeoutError:
            connection.close()
            raise AnswerLost("timeout") from None
        except BaseException:
            # Also after a stop: an answer that is not read must not come back.
            connection.close()
            raise
        if connection.usable:
            self._idle.append(connection)
        else:
            connection.close()
