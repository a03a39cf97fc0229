"""Pool: the connections to one URL, and the heads of the requests that are sent on them.

    POST <base path><leg path> HTTP/1.1                   another method where the leg passes one
    host, content-type, x-request-id, content-length      always
    authorization                                         if engines have a key of their own
    x-data-parallel-rank                                  if the instance is one rank
    the leg's own headers
    the client's headers on the allow-list                unless one above has the name

Everything up to the request id is the same for all calls to a URL and path, and is
built once.

The connection that became free last is used first: it is the least likely to be stale, and those
that are not needed any more stay unused until the limit.
"""

import asyncio
import re
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import urlsplit

from pdgate.forwarders.base import Leg
from pdgate.gateway.deadlines import Deadlines
from pdgate.gateway.turns import ParseTurns
from pdgate.gateway.upstream.connection import UpstreamConnection
from pdgate.gateway.upstream.exchange import Exchange
from pdgate.protocols.call import Call, Passed

RANK: Final = b"x-data-parallel-rank"
# These say where a message ends or goes: a leg that could set them could split it.
FRAMING: Final = frozenset(
    {b"connection", b"content-length", b"content-type", b"host", b"transfer-encoding", b"upgrade"}
)
MAX_KNOWN_PATHS: Final = 64

_OF_QUESTIONS: Final = ("accept-encoding: identity", "user-agent: pdgate")
"""Compressing an answer would cost the engine more than the network costs us."""

_POST: Final = Passed("POST", content_type=b"application/json")

_breaks_line = re.compile(rb"[\r\n\0]").search
_is_path = re.compile(r"/[!-~]*").fullmatch
_is_name = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+").fullmatch


class UrlTarget:
    """Where the requests for one URL go. Raises ValueError for a URL that is none.

    Attributes:
        host: Without the brackets of an IPv6 address.
        secure: TLS is spoken.
    """

    __slots__ = ("_authority", "_base", "_known", "_line_ends", "_own", "host", "port", "secure")

    def __init__(self, url: str, authorization: str = "") -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("not an http or https URL")
        self.secure = parts.scheme == "https"
        self.host = parts.hostname
        default_port = 443 if self.secure else 80
        self.port = parts.port or default_port
        host = f"[{self.host}]" if ":" in self.host else self.host
        authority = host if self.port == default_port else f"{host}:{self.port}"
        self._authority = authority.encode("ascii")
        self._base = parts.path.rstrip("/")
        if _breaks_line(authorization.encode("ascii")):
            raise ValueError("a line break in the authorization")
        # Built once with the constant part; no leg and no client can say it as well.
        self._own = f"authorization: {authorization}\r\n".encode("ascii") if authorization else b""
        # Of the constant part: the request line, host, content-type and perhaps the line above.
        self._line_ends = 4 if authorization else 3
        self._known: dict[str, str] = {}

    def head(self, leg: Leg, call: Call, body_bytes: int, forwarded: frozenset[bytes]) -> bytes:
        """Raises ValueError if the leg holds what no header line can."""
        usual = leg.passed is None
        if usual and not (
            leg.request_id or leg.headers or call.headers or leg.to.dp_rank is not None
        ):
            # Most legs. Of the call's own id it is known that it breaks no line. Text is formatted in half the time.
            begin = self._known.get(leg.path) or self._start(leg.path)
            return f"{begin}{call.attempt_id}\r\ncontent-length: {body_bytes}\r\n\r\n".encode(
                "ascii"
            )
        start = self._start_of(leg.path, leg.passed or _POST)
        request_id = (leg.request_id or call.attempt_id).encode("latin-1")
        lines = [start + request_id, b"content-length: %d" % body_bytes]
        taken = {b"authorization"} if self._own else set()
        for text, value in leg.headers.items():
            name = text.lower().encode("latin-1")
            if name in FRAMING or not _is_name(name):
                raise ValueError(f"a leg cannot set the header {text!r}")
            if self._own and name == b"authorization":
                continue
            taken.add(name)
            lines.append(b"%b: %b" % (name, value.encode("latin-1")))
        if leg.to.dp_rank is not None and RANK not in taken:
            taken.add(RANK)
            lines.append(b"%b: %d" % (RANK, leg.to.dp_rank))
        for header, content in call.headers:
            if header in forwarded and header not in taken and not _breaks_line(content):
                lines.append(header + b": " + content)
        head = b"\r\n".join(lines)
        # The first element has the constant part. More line ends than lines mean that a value brought its own.
        ends = len(lines) - 1 + self._line_ends
        # A number, as bytes are taken for one first, and an exception raised to find that they are none.
        if head.count(b"\n") != ends or head.count(b"\r") != ends or 0 in head:
            raise ValueError("a header of the leg holds a line break")
        return head + b"\r\n\r\n"

    def question(self, method: str, path: str, lines: Sequence[str]) -> bytes:
        """The head of a request that is no call, with these lines of ours."""
        whole = self._base + path
        if not _is_path(whole):
            raise ValueError(f"{whole!r} is not a path")
        start = b"%b %b HTTP/1.1\r\nhost: %b\r\n" % (
            method.encode(),
            whole.encode(),
            self._authority,
        )
        more = "\r\n".join((*_OF_QUESTIONS, *lines)).encode("ascii")
        return start + self._own + more + b"\r\n\r\n"

    def _start(self, path: str) -> str:
        """The constant part, up to the value of x-request-id."""
        filled = self._start_of(path, _POST).decode("ascii")
        if len(self._known) < MAX_KNOWN_PATHS:
            self._known[path] = filled
        return filled

    def _start_of(self, path: str, passed: Passed) -> bytes:
        """Up to the value of x-request-id, for a request that need not be a call."""
        whole = self._base + path
        method, content_type = passed.method.encode("ascii"), passed.content_type
        if not _is_path(whole) or not _is_name(method):
            raise ValueError("not a path, or not a method")
        if _breaks_line(content_type):
            raise ValueError("a line break in the content type")
        start = b"%b %b HTTP/1.1\r\nhost: %b\r\ncontent-type: %b\r\n%bx-request-id: "
        return start % (method, whole.encode("ascii"), self._authority, content_type, self._own)


class Pool:
    """
    Attributes:
        live: All connections that are open, free or not.
        idle: Those that are free, the latest last.
        watches_idle: They are looked at when the first may have been free for too long.
        turns: Of all connections to engines, for what comes in long reads.
        seconds, seen, due: For the deadlines.
    """

    seconds = 0.0
    seen = False
    due = 0.0

    def __init__(
        self,
        target: UrlTarget,
        tls: ssl.SSLContext | None,
        server_name: str,
        forwarded: frozenset[bytes],
        keep_idle_seconds: float,
        deadlines: Deadlines,
        loop: asyncio.AbstractEventLoop,
        turns: ParseTurns,
        emptied: Callable[[], None],
    ) -> None:
        self.target = target
        self.turns = turns
        self.live: set[UpstreamConnection] = set()
        self.idle: deque[UpstreamConnection] = deque()
        self._tls = tls
        self._forwarded = forwarded
        self._server_name = (server_name or target.host) if tls else None
        self._keep_idle_seconds = keep_idle_seconds
        self._deadlines = deadlines
        self._loop = loop
        self._emptied = emptied
        self._closing = False
        self._connecting = 0
        self.watches_idle = False

    def take(self) -> UpstreamConnection | None:
        """A free connection that is young enough; None if there is none."""
        oldest = self._loop.time() - self._keep_idle_seconds
        while self.idle:
            connection = self.idle.pop()
            if connection.transport.is_closing():
                continue
            if connection.idle_since > oldest:
                return connection
            connection.abort()
        return None

    def send(self, exchange: Exchange) -> bool:
        """On a free connection; False if there is none, and nothing is sent."""
        connection = self.take()
        if connection is None:
            return False
        self.send_on(connection, exchange)
        return True

    def send_on(self, connection: UpstreamConnection, exchange: Exchange) -> None:
        body = exchange.body
        try:
            head = self.target.head(exchange.leg, exchange.call, len(body), self._forwarded)
        except ValueError:
            # A bug of a forwarder, or an instance that announced nonsense.
            connection.abort()
            raise
        exchange.line = connection
        deadlines = self._deadlines
        if exchange.limited:
            deadlines.add(exchange)
            if deadlines.timer is None:
                deadlines.wind()
        connection.send(exchange, head, body)

    async def connect(self, limit_seconds: float | None) -> UpstreamConnection:
        """A new one. Raises OSError (TimeoutError among them) or UnicodeError."""
        self._connecting += 1
        try:
            async with asyncio.timeout(limit_seconds):  # its end does not wait
                _, connection = await self._loop.create_connection(
                    lambda: UpstreamConnection(self, self._loop),
                    self.target.host,
                    self.target.port,
                    ssl=self._tls,
                    server_hostname=self._server_name,
                )
        finally:
            self._connecting -= 1
            self._forget_if_empty()
        if self._closing:
            connection.abort()
            raise ConnectionAbortedError("the gateway is closing")
        return connection

    def made(self, connection: UpstreamConnection) -> None:
        self.live.add(connection)

    def close_oldest(self) -> None:
        """Of those that are free, as another takes its place."""
        while self.idle:
            connection = self.idle.popleft()
            if not connection.transport.is_closing():
                connection.abort()
                return

    def watch_idle(self) -> None:
        """One has become free, and none is watched."""
        self._watch(self._keep_idle_seconds)

    def lost(self, connection: UpstreamConnection) -> None:
        self.live.discard(connection)
        self._forget_if_empty()

    def close(self) -> None:
        """Closes all; an answer under way fails."""
        self._closing = True
        self.idle.clear()
        self._deadlines.forget(self)
        self.watches_idle = False
        for connection in list(self.live):
            connection.end()

    def _forget_if_empty(self) -> None:
        if not self.live and not self._connecting:
            self._emptied()

    def expired(self) -> None:
        """The one that became free first may have been free for too long."""
        oldest = self._loop.time() - self._keep_idle_seconds
        while self.idle and (
            self.idle[0].transport.is_closing() or self.idle[0].idle_since <= oldest
        ):
            connection = self.idle.popleft()
            if not connection.transport.is_closing():
                connection.abort()
        self.watches_idle = False
        if self.idle:
            self._watch(self.idle[0].idle_since - oldest)

    def _watch(self, seconds: float) -> None:
        """Once for all that come and go meanwhile."""
        self.watches_idle = True
        self._deadlines.watch(self, seconds)
