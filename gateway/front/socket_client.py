"""Socket client: a client's WebSocket on our own connections, from the request for it to its end.

    HotProtocol --Upgrade--> SocketOpening --head is whole--> SocketClient --> front.realtime (gateway/realtime/)
                                                                `-- SocketWire is the connection's protocol now

The handshake is ours, as its request has been parsed already; frames are wsproto's. What is held for a session, of
either side, counts as a body does (crowd.py); the session ends where there is no memory for it.

Source: RFC 6455, section 4.2; uvicorn 0.54, server.py, of which the server asks `shutdown` here as well.
"""

import asyncio
import binascii
from base64 import b64decode
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

import httptools
from wsproto.connection import Connection, ConnectionType
from wsproto.utilities import generate_accept_token

from pdgate.gateway import errors
from pdgate.gateway.front.addresses import local_address, peer_has_left
from pdgate.gateway.front.crowd import Crowd
from pdgate.gateway.front.response_head import CLOSE, head_lines, header_lines
from pdgate.gateway.request_headers import RequestHeaders
from pdgate.gateway.sockets.wire import SocketWire
from pdgate.protocols.apis import REALTIME
from pdgate.protocols.call import Headers
from pdgate.protocols.errors import GatewayError

if TYPE_CHECKING:
    from pdgate.gateway.front.asgi import Front

VERSION: Final = b"13"
NONCE_BYTES: Final = 16


class UpgradingConnection(Protocol):
    """The connection that a request for a WebSocket came on; see `hot_protocol.py`."""

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    headers: list[tuple[bytes, bytes]]
    url: bytes
    crowd: Crowd
    front: "Front"
    server_state: Any
    tasks: set[asyncio.Task[None]]


class SocketOpening:
    """Cycle of a request for a WebSocket, until its head is whole. It has no body, and no answer of its own.

    Attributes:
        asked: The head is whole.
        headers: Of the request.
        key: Sec-WebSocket-Key.
    """

    keep_alive = False
    response_complete = False
    has_begun = False
    let_in = False
    is_full = False
    body_bytes_said = 0

    def __init__(self, headers: Headers, query: str, key: bytes) -> None:
        self.asked = False
        self.headers = headers
        self.query = query
        self.key = key

    def begin(self) -> None:
        """It begins with `take_over`."""

    def more_body(self, piece: bytes) -> None:
        """There is none."""

    def whole_body(self) -> None:
        self.asked = True

    def client_left(self) -> None:
        """Nothing has begun."""

    def turn_away(self, error: GatewayError) -> None:
        """There is no body to turn away."""

    def take_over(self, connection: UpgradingConnection, strange_bytes: int) -> None:
        SocketClient(self, connection, strange_bytes)


def opening_of(
    connection: UpgradingConnection, method: bytes, version: str
) -> SocketOpening | None:
    """None for what is no request for a WebSocket at the one path that has them: it is answered as any other."""
    if method != b"GET" or version != "1.1" or connection.front.realtime is None:
        return None
    try:
        url = httptools.parse_url(connection.url)
    except httptools.HttpParserInvalidURLError:
        return None
    if url.path != REALTIME.encode():
        return None
    if local_address(connection.transport)[1] == connection.front.admin_port:
        return None
    headers = RequestHeaders(connection.headers)
    named = headers.named
    key = named.get(b"sec-websocket-key", b"")
    if (
        named.get(b"upgrade", b"").strip().lower() != b"websocket"
        or named.get(b"sec-websocket-version", b"").strip() != VERSION
        or headers.times(b"sec-websocket-key") != 1
        or not _is_nonce(key)
        or b"content-length" in named
        or b"transfer-encoding" in named
    ):
        return None
    return SocketOpening(connection.headers, (url.query or b"").decode("latin-1"), key)


def _is_nonce(key: bytes) -> bool:
    try:
        return len(b64decode(key, validate=True)) == NONCE_BYTES
    except (binascii.Error, ValueError):
        return False


class SocketClient:
    """
    Attributes:
        headers, query: Of the request.
        yields: What is held can be had back: the session ends.
        loose_bytes, held_bytes: See `crowd.py`.
        strange_bytes: What its TLS takes, until the session is accepted or the connection is lost.
    """

    def __init__(
        self, opening: SocketOpening, connection: UpgradingConnection, strange_bytes: int
    ) -> None:
        self.headers, self.query = opening.headers, opening.query
        self.loose_bytes = self.held_bytes = 0
        self._key = opening.key
        self._front = connection.front
        self._crowd = connection.crowd
        self._server_state = connection.server_state
        self._accepted = False
        self._lost: Callable[[], None] = self._cancel
        self._out_of_memory: Callable[[], None] = self._cancel
        self._transport = connection.transport
        self._wire = wire = SocketWire(
            Connection(ConnectionType.SERVER), connection.crowd.turns, self.weigh
        )
        wire.on_lost = self._has_left
        self._transport.set_protocol(wire)
        wire.connection_made(self._transport)
        self._crowd.join(self, connection.loop)
        self.strange_bytes = strange_bytes
        if strange_bytes:
            self._crowd.weigh_stranger(self)
        self._server_state.connections.add(self)
        self._tasks = connection.tasks
        self._task = connection.loop.create_task(self._run())
        self._tasks.add(self._task)
        self._task.add_done_callback(self._over)

    async def _run(self) -> None:
        realtime = self._front.realtime
        assert realtime is not None
        await realtime.serve(self, self._front.cors)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._server_state.connections.discard(self)
        if self._accepted or task.cancelled():
            self._wire.abort()
        # What comes until the transport is closed counts for no session.
        self._wire.weigh = _nothing
        self._crowd.leave(self)
        self._crowd.free(self, self.held_bytes)
        if not task.cancelled() and (error := task.exception()) is not None:
            errors.known(error)
            self._wire.abort()
        self._part()

    # What the door asks.

    async def refuse(self, error: GatewayError, call_id: str) -> None:
        status, headers, body = errors.as_response(error, call_id)
        self._transport.write(head_lines(status, headers, b"" if error.closes else CLOSE) + body)
        self._transport.close()

    async def accept(self, subprotocol: str, call_id: str) -> SocketWire:
        headers = [
            *self._server_state.default_headers,
            (b"upgrade", b"websocket"),
            (b"connection", b"Upgrade"),
            (b"sec-websocket-accept", generate_accept_token(self._key)),
            (b"x-request-id", call_id.encode()),
        ]
        if subprotocol:
            headers.append((b"sec-websocket-protocol", subprotocol.encode("ascii")))
        self._accepted = True
        self._forget_stranger()
        head = b"HTTP/1.1 101 Switching Protocols\r\n" + header_lines(headers) + b"\r\n"
        if not self._wire.lost:
            self._transport.write(head)
        return self._wire

    def weigh(self, more_bytes: int) -> None:
        if more_bytes > 0:
            self._crowd.hold(self, more_bytes)
        elif more_bytes:
            self._crowd.free(self, -more_bytes)

    def watch(self, lost: Callable[[], None], out_of_memory: Callable[[], None]) -> None:
        self._lost, self._out_of_memory = lost, out_of_memory
        if self._wire.lost:
            lost()

    # What the crowd asks, and the server.

    @property
    def yields(self) -> bool:
        return True

    def look(self, now: float) -> None:
        """The relay has the limits of time. A socket that is not read, as the engine does not read either, does
        not tell that its client has left.
        """
        if not (self._wire.lost or self._transport.is_closing()) and peer_has_left(self._transport):
            self._lost()

    def cut(self) -> None:
        self._wire.abort()
        # Also one that is closing: TLS waits for the other end to say so too.
        self._transport.abort()

    def yield_memory(self, error: GatewayError) -> None:
        self._out_of_memory()

    def shutdown(self) -> None:
        """The server ends. Clients that the drain has left open get the reason, and what has not begun is cut."""
        if self._accepted:
            realtime = self._front.realtime
            assert realtime is not None
            realtime.sessions.end_all()
        else:
            self._cancel()

    # How.

    def _has_left(self) -> None:
        self._forget_stranger()
        self._lost()
        self._part()

    def _part(self) -> None:
        """All is over: until Python looks for circles of what knows each other, TLS would keep its buffers."""
        if self._task.done() and self._wire.lost:
            self._lost = self._out_of_memory = self._wire.on_lost = _is_over

    def _forget_stranger(self) -> None:
        if self.strange_bytes:
            self.strange_bytes = 0
            self._crowd.forget_stranger(self)

    def _cancel(self) -> None:
        self._task.cancel()


def _nothing(_: int) -> None: ...


def _is_over() -> None: ...
