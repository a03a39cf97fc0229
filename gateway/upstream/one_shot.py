"""One-shot client of an engine: a few small questions, off the path of calls.

with OneShotClient(Target("http://10.0.0.1:8000"), None, "") as engine:
    health = await engine.get("/health")          # Said(status, body); or raises AskFailed
    models = await engine.get("/v1/models")       # on the same connection, if the engine keeps it

The connection is a fresh one, as whether it is accepted is part of the question: one that was kept
from an earlier visit and that the engine has closed meanwhile would look like a sick engine. It is
closed at the end of the block, however it ends; how long a visit may take is its caller's to limit.

Nothing is followed, asked for compressed or sent through a proxy. A question takes a future and no
task: an idle gateway does little else than ask.
"""

import asyncio
import ssl
from errno import ECONNREFUSED
from types import TracebackType
from typing import Final, NamedTuple, Self, cast

from httptools import (
    HttpParserCallbackError,
    HttpParserError,
    HttpParserUpgrade,
    HttpResponseParser,
)

from pdgate.gateway.upstream.connection import MAX_HEAD_BYTES
from pdgate.gateway.upstream.pool import UrlTarget
from pdgate.gateway.upstream.shortage import is_ours

MOST_BYTES: Final = 8 << 20
LONG_BYTES: Final = 64 << 10
"""Of a read, after which others have a turn."""
"""Of an answer's body, where the caller says nothing else."""


class AskFailed(Exception):
    """There is no whole answer; the message says why, for operators."""


class Gone(AskFailed):
    """Nothing accepts connections there, or no server that we trust (TLS).

    Attributes:
        refused: The host is there, and says that nothing listens.
    """

    def __init__(self, message: str, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class Short(AskFailed):
    """This host has no socket to ask with, which says nothing of the engine."""


class _Left(AskFailed):
    """The engine closed a connection that had served before, without a byte of an answer."""


class OneShotAnswer(NamedTuple):
    """The answer to one question."""

    status: int
    body: bytes


class OneShotClient:
    """Usable inside its `with` block."""

    def __init__(self, target: UrlTarget, tls: ssl.SSLContext | None, server_name: str) -> None:
        """`tls` counts for https URLs only; `server_name` where it is not the URL's host."""
        self._target = target
        self._tls = tls
        self._server_name = server_name
        self._line: _OneShotLine | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._line is not None:
            self._line.close()

    async def get(
        self, path: str, *, accept: str = "*/*", most_bytes: int = MOST_BYTES
    ) -> OneShotAnswer:
        """Raises AskFailed."""
        return await self._ask("GET", path, [f"accept: {accept}"], b"", most_bytes)

    async def post(self, path: str, body: bytes, *, most_bytes: int = MOST_BYTES) -> OneShotAnswer:
        """`body` is JSON. Raises AskFailed."""
        lines = ["content-type: application/json", f"content-length: {len(body)}"]
        return await self._ask("POST", path, lines, body, most_bytes)

    async def _ask(
        self, method: str, path: str, lines: list[str], body: bytes, most_bytes: int
    ) -> OneShotAnswer:
        try:
            request = self._target.question(method, path, lines) + body
        except ValueError as error:
            raise AskFailed(f"{method} {path}: {error}") from None
        try:
            if self._line is not None and self._line.free:
                try:
                    return await self._line.ask(request, most_bytes)
                # It did not read the question, so asking again is asking once.
                except _Left:
                    pass
            return await (await self._connected()).ask(request, most_bytes)
        except (Gone, Short):
            raise
        except AskFailed as error:
            raise AskFailed(f"{method} {path}: {error}") from None

    async def _connected(self) -> "_OneShotLine":
        if self._line is not None:
            self._line.close()
        loop, target = asyncio.get_running_loop(), self._target
        try:
            _, self._line = await loop.create_connection(
                lambda: _OneShotLine(loop),
                target.host,
                target.port,
                ssl=self._tls if target.secure else None,
                server_hostname=(self._server_name or target.host) if target.secure else None,
            )
        # UnicodeError: a host name that IDNA cannot encode.
        except (OSError, UnicodeError) as error:
            if is_ours(error):
                raise Short(f"this host has no socket for it: {error}") from None
            where = f"{target.host}:{target.port}"
            said = str(error) or type(error).__name__
            # Of several addresses that all failed there is only the text.
            refused = f"[Errno {ECONNREFUSED}]" in said
            raise Gone(f"no connection to {where}: {said}", refused) from None
        return self._line


class _OneShotLine(asyncio.Protocol):
    """A connection, which answers one question at a time."""

    __slots__ = (
        "_answer",
        "_body",
        "_bytes",
        "_complete",
        "_head_bytes",
        "_in_head",
        "_keeps",
        "_loop",
        "_most_bytes",
        "_parser",
        "_says_where_it_ends",
        "_served",
        "_status",
        "_transport",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._parser = HttpResponseParser(self)
        self._answer: asyncio.Future[OneShotAnswer] | None = None
        self._keeps = True
        self._served = False

    @property
    def free(self) -> bool:
        """Whether it can take another question."""
        return self._keeps and not self._transport.is_closing()

    def ask(self, request: bytes, most_bytes: int) -> "asyncio.Future[OneShotAnswer]":
        """Its future raises AskFailed."""
        self._most_bytes = most_bytes
        self._body: list[bytes] = []
        self._bytes = self._head_bytes = 0
        self._in_head, self._complete = True, False
        self._keeps = self._says_where_it_ends = False
        answer = self._answer = self._loop.create_future()
        self._transport.write(request)
        return answer

    def close(self) -> None:
        """At once; no caller waits for what is asked."""
        self._answer = None
        self._transport.abort()

    # asyncio calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            # No request was sent: whatever it is, it looks like the next answer.
            self._keeps = False
            self._transport.abort()
            return
        if len(data) > LONG_BYTES and not self._transport.is_closing():
            # Others first: a socket that is full again each time is read 32 times in a row (libuv, uv__read).
            self._transport.pause_reading()
            self._loop.call_soon(self._read_on)
        garbage, before = False, self._bytes
        try:
            self._parser.feed_data(data)
        except HttpParserCallbackError:
            raise
        except (HttpParserError, HttpParserUpgrade):
            garbage = True
        if self._bytes == before:
            # Trailers and extensions count, too: the parser keeps what is no whole line.
            self._head_bytes += len(data)
        if self._bytes > self._most_bytes:
            self._fail(AskFailed(f"its answer is longer than {self._most_bytes} bytes"))
        elif self._complete:
            # What it sent behind the answer would be taken for the next one.
            self._keeps = self._keeps and not garbage
            self._end()
        elif garbage:
            self._fail(AskFailed("its answer is not HTTP"))
        elif self._head_bytes > MAX_HEAD_BYTES:
            self._fail(AskFailed("the head of its answer is too long"))

    def eof_received(self) -> None:
        if self._answer is not None and not self._in_head and not self._says_where_it_ends:
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        silent = self._served and not self._head_bytes and self._in_head
        self._fail((_Left if silent else AskFailed)("it broke off before its answer was whole"))

    # httptools calls these.

    def on_message_begin(self) -> None:
        if self._complete:
            self._keeps = False

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        # The last coding decides (RFC 9112, section 6.3).
        if name == b"transfer-encoding":
            self._says_where_it_ends = value.lower().rstrip().endswith(b"chunked")
        elif name == b"content-length":
            self._says_where_it_ends = True

    def on_headers_complete(self) -> None:
        # Answers 1xx are skipped (RFC 9110, section 15.2), except 101, which we never ask for.
        status = self._parser.get_status_code()
        if self._complete:
            return
        if 100 <= status < 200 and status != 101:
            self._says_where_it_ends = False
        else:
            self._status = status
            self._in_head = False

    def on_body(self, piece: bytes) -> None:
        if not self._complete:
            self._bytes += len(piece)
            self._body.append(piece)

    def on_message_complete(self) -> None:
        if not self._in_head and not self._complete:
            self._complete = True
            self._keeps = self._parser.should_keep_alive()

    # How.

    def _read_on(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _end(self) -> None:
        answer, self._answer = self._answer, None
        self._served = True
        if answer is not None and not answer.done():
            answer.set_result(OneShotAnswer(self._status, b"".join(self._body)))

    def _fail(self, error: AskFailed) -> None:
        answer, self._answer = self._answer, None
        self._transport.abort()
        if answer is not None and not answer.done():
            answer.set_exception(error)
