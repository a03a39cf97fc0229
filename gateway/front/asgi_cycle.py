"""ASGI cycle: one request that an ASGI application answers; its scope, and its receive and send.

Any request is: of a route that is not hot, of HTTP/1.0, or one that came before the answer to the one
before it. HTTP/1.0 knows no chunks: where an answer's length is not said, the end of the connection ends it.

Source: ASGI specification 3.0, "HTTP & WebSocket ASGI Message Format" 2.3; RFC 9112, section 6.
"""

import asyncio
import re
import urllib.parse
from typing import Any, Final, Protocol

import httptools
from starlette.types import ASGIApp, Message, Scope

from pdgate.gateway import errors
from pdgate.gateway.front.addresses import local_address, peer_address
from pdgate.gateway.front.continuing import CONTINUE, expects_continue
from pdgate.gateway.front.crowd import Crowd, CrowdMember
from pdgate.gateway.front.limits import SLICE_BYTES, TLS_BUFFER_BYTES
from pdgate.gateway.front.response_head import CLOSE, CommonHeadLines, head_lines, header_lines
from pdgate.protocols.apis import shape_of
from pdgate.protocols.call import Headers
from pdgate.protocols.errors import BadRequest, GatewayError

HIGH_WATER_BYTES: Final = 64 << 10
"""Of a body that the application has not taken; then the socket is not read."""

LET_IN: Final = "pdgate.let_in"
"""In the state of a scope: the application has let the caller in."""
STREAMED: Final = "pdgate.streamed"
"""There as well: the application keeps nothing of the body that it has been given."""

_CHUNKED: Final = b"transfer-encoding: chunked\r\n"
_ASGI: Final = {"version": "3.0", "spec_version": "2.3"}

_not_of_a_name = re.compile(rb'[\x00-\x20\x7f()<>@,;:\\\[\]={}"/?]').search
_not_of_a_value = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]").search


class AsgiConnection(CrowdMember, Protocol):
    """What a cycle needs of the connection that it is on; see `hot_protocol.py`."""

    transport: asyncio.Transport
    tcp: asyncio.Transport | None
    loop: asyncio.AbstractEventLoop
    headers: list[tuple[bytes, bytes]]
    url: bytes
    app_state: dict[str, Any]
    crowd: Crowd
    server_state: Any
    tasks: set[asyncio.Task[None]]
    shared_lines: CommonHeadLines

    @property
    def front(self) -> ASGIApp: ...

    def linger(self) -> None: ...
    def pause_body(self) -> None: ...
    def body_is_wanted(self) -> None: ...
    def on_complete(self, cycle: Any) -> None: ...
    def note_for_tls(self, bytes_: int) -> None: ...
    async def drain(self) -> None: ...


class AsgiCycle:
    """
    Attributes:
        keep_alive: Whether the connection serves another request afterwards.
        asked: The request is whole.
        response_complete: Nothing more is sent.
        body_bytes_said: By Content-Length; -1 where it is not.
        let_in: The caller may call, by what the application found.
        declined: It asked for another protocol, and is answered in this one.
    """

    __slots__ = (
        "_body", "_changed", "_connection", "_expects", "_head", "_headers", "_held", "_left", "_length",
        "_method", "_old", "_path", "_query", "_raw_path", "_started", "_state", "_task", "asked",
        "body_bytes_said", "declined", "keep_alive", "response_complete",
    )  # fmt: skip

    def __init__(
        self, connection: AsgiConnection, method: bytes, *, old: bool, keep_alive: bool
    ) -> None:
        """`old`: HTTP/1.0. Raises BadRequest for a target that is no URL."""
        self._connection = connection
        self._method = method
        self._old = old
        self._headers = connection.headers
        self._raw_path, self._path, self._query = _target(connection.url)
        # RFC 9110, section 10.1.1: an expectation of HTTP/1.0 is to be ignored.
        self._expects = not old and expects_continue(connection.headers)
        self.keep_alive = keep_alive and not old
        self.body_bytes_said = _length_of(connection.headers)
        self.asked = False
        self.declined = False
        self.response_complete = False
        self._body = bytearray()
        self._held = 0
        self._left = False
        self._state = connection.app_state.copy()
        self._started = False
        # Written with the first piece of the body, as ASGI wants it.
        self._head = b""
        # Of the answer's body: bytes to come, where its head said how many; None for chunks.
        self._length: int | None = None
        self._changed: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None

    # The request, as the parser tells of it.

    def begin(self) -> None:
        """It is its turn."""
        self._changed = asyncio.Event()
        if self.asked or self._body:
            self._changed.set()
        self._task = task = self._connection.loop.create_task(self._run())
        self._connection.tasks.add(task)
        task.add_done_callback(self._connection.tasks.discard)

    def more_body(self, piece: bytes) -> None:
        if self.response_complete:
            return
        self._body += piece
        self._held += len(piece)
        self._connection.crowd.hold(self._connection, len(piece))
        if self.is_full:
            self._connection.pause_body()
        self._wake()

    def whole_body(self) -> None:
        self.asked = True
        if self.response_complete and not self.keep_alive:
            # It was turned away, and has now sent all that it wanted to.
            self._connection.on_complete(self)
        self._wake()

    @property
    def let_in(self) -> bool:
        return LET_IN in self._state

    @property
    def is_full(self) -> bool:
        return len(self._body) > HIGH_WATER_BYTES

    @property
    def has_begun(self) -> bool:
        """Something of the answer is out."""
        return self._started and not self._head

    def client_left(self) -> None:
        self._left = True
        if self._task is None:
            self._give_back()
        self._wake()

    def turn_away(self, error: GatewayError) -> None:
        """The rest of the body is not waited for."""
        if self.has_begun:
            self._connection.cut()
            return
        self._answer(error)
        self.response_complete = True
        self._connection.linger()
        self._wake()

    # ASGI.

    async def _run(self) -> None:
        connection = self._connection
        try:
            await connection.front(self._scope(), self._receive, self._send)
        except Exception as error:  # noqa: BLE001
            # A bug of ours must not leave the client waiting; `known` logs it.
            self._give_up(errors.known(error))
        except BaseException:
            # The server gave up waiting for us at shutdown.
            connection.transport.abort()
            raise
        else:
            if not (self.response_complete or self._left):
                # The application has nothing more to say, and has not said so.
                self._give_up(GatewayError("internal error"))
        finally:
            self._give_back()

    def _scope(self) -> Scope:
        connection = self._connection
        transport = connection.transport
        return {
            "type": "http",
            "asgi": _ASGI,
            "http_version": "1.0" if self._old else "1.1",
            "server": local_address(transport),
            "client": peer_address(transport),
            "scheme": "https" if transport.get_extra_info("sslcontext") else "http",
            "method": self._method.decode("ascii"),
            "root_path": "",
            "path": self._path,
            "raw_path": self._raw_path,
            "query_string": self._query,
            "headers": self._headers,
            "state": self._state,
        }

    async def _receive(self) -> Message:
        connection = self._connection
        if self._expects and not (self._started or self._left or self.response_complete):
            self._expects = False
            connection.transport.write(CONTINUE)
        assert self._changed is not None
        if not (self._left or self.response_complete):
            connection.body_is_wanted()
            await self._changed.wait()
            self._changed.clear()
        if self._left or self.response_complete:
            return {"type": "http.disconnect"}
        body, self._body = bytes(self._body), bytearray()
        if STREAMED in self._state:
            connection.crowd.free(connection, self._held)
            self._held = 0
        return {"type": "http.request", "body": body, "more_body": not self.asked}

    async def _send(self, message: Message) -> None:
        connection = self._connection
        await connection.drain()
        if self._left or (self.response_complete and not self.keep_alive):
            return
        if self.response_complete:
            raise RuntimeError("the answer was complete")
        kind = message["type"]
        if kind != ("http.response.body" if self._started else "http.response.start"):
            raise RuntimeError(f"{kind} is not for now")
        if self._started:
            body = message.get("body", b"")
            if connection.tcp is not None and len(body) > SLICE_BYTES:
                body = await self._write_slices(body)
                if self._is_over:
                    return
            self._more(body, last=not message.get("more_body", False))
        else:
            self._begin_answer(message["status"], list(message.get("headers", ())))

    async def _write_slices(self, body: bytes) -> bytes:
        """The last one is left. OpenSSL's buffer would stay as large as what it is given at once."""
        connection = self._connection
        connection.note_for_tls(TLS_BUFFER_BYTES)
        at = 0
        while len(body) - at > SLICE_BYTES and not self._is_over:
            self._more(body[at : at + SLICE_BYTES], last=False)
            at += SLICE_BYTES
            await connection.drain()
        return body[at:]

    @property
    def _is_over(self) -> bool:
        """A connection that is cut is lost in the next turn of the loop."""
        return self._left or self.response_complete or self._connection.transport.is_closing()

    # The answer.

    def _begin_answer(self, status: int, headers: Headers) -> None:
        """Raises RuntimeError for what would be no head."""
        _check(headers)
        named = dict(headers)
        if b"close" in named.get(b"connection", b"").lower():
            self.keep_alive = False
        if self._expects and not self.asked:
            # It may send the body all the same, or go on: only the end of the connection is clear.
            self.keep_alive = False
        bodiless = self._method == b"HEAD" or status in (204, 304)
        more = b""
        if bodiless:
            self._length = -1
        elif (said := named.get(b"content-length")) is not None:
            self._length = int(said)
        elif self._old:
            self._length = -2
        elif named.get(b"transfer-encoding", b"").lower() != b"chunked":
            more = _CHUNKED
        if not self.keep_alive and b"connection" not in named:
            more += CLOSE
        connection = self._connection
        self._started = True
        self._head = connection.shared_lines.head(
            status, connection.server_state.default_headers, header_lines(headers) + more
        )

    def _more(self, body: bytes, *, last: bool) -> None:
        """Raises RuntimeError for more or less than the head has said."""
        length = self._length
        if length is None:
            body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if last:
                body += b"0\r\n\r\n"
        elif length == -1:
            body = b""
        elif length >= 0:
            self._length = length = length - len(body)
            if length < 0 or (last and length):
                raise RuntimeError("the answer's body is not as long as its head says")
        if self._head:
            body, self._head = self._head + body, b""
        if body:
            self._connection.transport.write(body)
        if last:
            self._answered()

    def _answered(self) -> None:
        """The answer is whole. If the request is not, and is the last of its connection, the rest of it is dropped."""
        self.response_complete = True
        self._wake()
        if self.keep_alive or self.asked or self._expects:
            self._connection.on_complete(self)
        else:
            # A connection that is closed with bytes unread is reset, and the client never reads why.
            self._connection.linger()

    def _give_up(self, error: GatewayError) -> None:
        """The application is done with it, and the answer is not whole."""
        if self._left or self.response_complete:
            return
        if self.has_begun:
            # The cut is how the client learns of it.
            self._connection.transport.close()
            return
        self._answer(error)
        self._answered()

    def _answer(self, error: GatewayError) -> None:
        self.keep_alive = False
        self._started, self._head = True, b""
        status, headers, body = errors.as_response(error, shape=shape_of(self._path))
        closing = b"" if error.closes else CLOSE
        if self._method == b"HEAD":
            body = b""
        self._connection.transport.write(head_lines(status, headers, closing) + body)

    def _give_back(self) -> None:
        self._connection.crowd.free(self._connection, self._held)
        self._held = 0
        self._body = bytearray()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()


def _target(url: bytes) -> tuple[bytes, str, bytes]:
    """Path as it came and as it reads, and query. Raises BadRequest."""
    try:
        found = httptools.parse_url(url)
        raw: bytes | None = found.path
        path = "" if raw is None else raw.decode("ascii")
    except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
        raise BadRequest("the request's target is no URL") from None
    if raw is None:
        raise BadRequest("the request's target has no path")
    return raw, urllib.parse.unquote(path) if "%" in path else path, found.query or b""


def _length_of(headers: Headers) -> int:
    # The parser has seen to it that there is one at most, and that it is a number.
    return next((int(found) for name, found in headers if name == b"content-length"), -1)


def _check(headers: Headers) -> None:
    """Raises RuntimeError: an application's head must not become two."""
    for name, found in headers:
        if _not_of_a_name(name) or _not_of_a_value(found):
            raise RuntimeError(f"{name!r} is no header of an answer")
