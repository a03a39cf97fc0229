"""ASGI socket: a client's WebSocket on another server's connections, as a side of a session.

The server has the frames: it makes whole messages of them, answers pings, and bounds a message (uvicorn
--ws-max-size, Hypercorn's websocket_max_message_size). A refusal is an HTTP response where the server can write one
(the extension `websocket.http.response`), else 403.

Source: ASGI specification 3.0, "HTTP & WebSocket ASGI Message Format" 2.5.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self

from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect
from wsproto.events import BytesMessage, CloseConnection, Event, TextMessage
from wsproto.frame_protocol import CloseReason

from pdgate.gateway import errors
from pdgate.gateway.front.crowd import Crowd
from pdgate.gateway.sockets.wire import CLOSE_SECONDS
from pdgate.protocols.call import Headers
from pdgate.protocols.errors import GatewayError

REFUSES: Final = "websocket.http.response"
_GONE: Final = (OSError, RuntimeError, WebSocketDisconnect)
"""What servers raise, and Starlette, when a message is for a client that has left."""


class AsgiSocket:
    """
    Attributes:
        headers, query: Of the request.
        passes_pings, broken: See `relay.SessionSide`.
        yields, loose_bytes, held_bytes: See `crowd.py`.
    """

    passes_pings = False
    broken = ""
    yields = True

    def __init__(self, scope: Scope, receive: Receive, send: Send, crowd: Crowd) -> None:
        self.headers: Headers = [(name.lower(), said) for name, said in scope["headers"]]
        self.query = scope["query_string"].decode("latin-1")
        self.loose_bytes = self.held_bytes = 0
        self._can_refuse = REFUSES in (scope.get("extensions") or {})
        self._receive = receive
        self._send = send
        self._crowd = crowd
        self._part = bytearray()
        self._gone = False
        self._out_of_memory: Callable[[], None] = lambda: None

    def __enter__(self) -> Self:
        self._crowd.join(self, asyncio.get_running_loop())
        return self

    def __exit__(self, *_: object) -> None:
        self._crowd.leave(self)
        self._crowd.free(self, self.held_bytes)

    # What the door asks.

    async def refuse(self, error: GatewayError, call_id: str) -> None:
        with suppress(*_GONE):
            if not self._can_refuse:
                await self._send({"type": "websocket.close", "code": CloseReason.POLICY_VIOLATION})
                return
            status, headers, body = errors.as_response(error, call_id)
            await self._send(
                {"type": f"{REFUSES}.start", "status": status, "headers": list(headers)}
            )
            await self._send({"type": f"{REFUSES}.body", "body": body, "more_body": False})

    async def accept(self, subprotocol: str, call_id: str) -> "AsgiSocket":
        headers = [(b"x-request-id", call_id.encode())]
        try:
            await self._send(
                {
                    "type": "websocket.accept",
                    "subprotocol": subprotocol or None,
                    "headers": headers,
                }
            )
        except _GONE:
            self._gone = True
        return self

    def weigh(self, more_bytes: int) -> None:
        if more_bytes > 0:
            self._crowd.hold(self, more_bytes)
        elif more_bytes:
            self._crowd.free(self, -more_bytes)

    def watch(self, lost: Callable[[], None], out_of_memory: Callable[[], None]) -> None:
        self._out_of_memory = out_of_memory

    # A side of the relay.

    async def receive(self) -> Event:
        if self._gone:
            return CloseConnection(code=CloseReason.ABNORMAL_CLOSURE)
        try:
            message = await self._receive()
        except _GONE:
            message = {"type": "websocket.disconnect", "code": CloseReason.ABNORMAL_CLOSURE}
        if message["type"] != "websocket.receive":
            self._gone = True
            code = message.get("code") or CloseReason.NO_STATUS_RCVD
            return CloseConnection(code=code, reason=message.get("reason") or "")
        if (text := message.get("text")) is not None:
            return TextMessage(data=text)
        return BytesMessage(data=message.get("bytes") or b"")

    async def send(self, event: Event) -> None:
        """Whole messages alone: pieces wait here, and a message's length is the relay's to bound."""
        if self._gone or not isinstance(event, TextMessage | BytesMessage):
            return
        data = event.data.encode() if isinstance(event, TextMessage) else event.data
        self._part += data
        self.weigh(len(data))
        if not event.message_finished:
            return
        whole = bytes(self._part)
        self._part.clear()
        kind, said = (
            ("text", whole.decode()) if isinstance(event, TextMessage) else ("bytes", whole)
        )
        try:
            await self._send({"type": "websocket.send", kind: said})
        except _GONE:
            self._gone = True
        finally:
            self.weigh(-len(whole))

    async def close(self, code: int | None, reason: str) -> None:
        if self._gone:
            return
        self._gone = True
        code = code or CloseReason.NORMAL_CLOSURE
        with suppress(TimeoutError, *_GONE):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._send({"type": "websocket.close", "code": code, "reason": reason})

    # What the crowd asks.

    def look(self, now: float) -> None:
        """The relay has the limits of time."""

    def cut(self) -> None:
        """Never called: nothing of it is loose."""
        raise AssertionError("a socket of another server's connection holds nothing loosely")

    def yield_memory(self, error: GatewayError) -> None:
        self._out_of_memory()
