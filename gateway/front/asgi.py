"""ASGI front end: serves calls of any ASGI server's connections.

    our own connections, hot POSTs     hot_cycle.py: none of this
    our own connections, the rest      Front(): takes calls before FastAPI, and hands on the rest
    any ASGI server's, FastAPI route   Front.serve(), called by the application's routes (gateway/app.py)

One task serves a call and pumps its answer; another waits for the client to leave and
then cancels the first, which closes everything that was opened for it. Pieces of the
answer arrive by callback and wait here; when too many do, the engine is read no more.
"""

import asyncio
from contextlib import aclosing, suppress

from fastapi import FastAPI
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from pdgate.forwarders.base import Answer
from pdgate.forwarders.record import Record
from pdgate.gateway import errors
from pdgate.gateway.apis.passing import PassedRequest, asked, target_of
from pdgate.gateway.deadlines import Deadlines
from pdgate.gateway.debug import DebugHeaders
from pdgate.gateway.front.asgi_cycle import LET_IN
from pdgate.gateway.front.crowd import Crowd
from pdgate.gateway.front.incoming import IncomingBody
from pdgate.gateway.front.limits import LINGER_SECONDS, check_host
from pdgate.gateway.front.pings import PING, Pings
from pdgate.gateway.front.response_head import CommonHeadLines, answer_head, streams
from pdgate.gateway.front.socket_asgi import AsgiSocket
from pdgate.gateway.intake import TAKEN
from pdgate.gateway.lifecycle.reload import Reload
from pdgate.gateway.memory_limit import for_bodies
from pdgate.gateway.realtime.door import RealtimeDoor
from pdgate.gateway.request_headers import RequestHeaders
from pdgate.gateway.security.authenticator import KeyState
from pdgate.gateway.security.cors import Cors
from pdgate.gateway.service import Service
from pdgate.protocols.apis import Shape, shape_of
from pdgate.protocols.errors import BadRequest, GatewayError
from pdgate.protocols.sse import EVENT_ENDS

MAX_WAITING_BYTES = 64 << 10
MOST_DIGITS = 18


class Front:
    """
    Attributes:
        cors: Says which web pages may call; None for none.
        admin_port: Where no calls are taken; None if admins come to the same port as clients.
        debug: Headers of answers that name instances; None for none.
        wanted: Names of the engines' headers that clients get, beside those of the body.
        pings: Keeps streams alive that have nothing to say; None lets them be silent.
        reload: Changes all of this while it runs; for the owner of the process.
        passthrough: Routes of /v1 that are not known pass to an engine.
        owns: Beginnings of paths that do not.
        shared_lines: Of the heads that our own connections write.
        crowd: Those connections, and the memory that they may hold.
        application: Of FastAPI, whose routes serve calls as well.
        realtime: Serves WebSockets; None until the gateway is complete.
    """

    def __init__(
        self,
        service: Service,
        others: ASGIApp,
        debug: DebugHeaders | None,
        wanted: frozenset[bytes] = frozenset(),
        pings: Pings | None = None,
        reload: Reload | None = None,
        crowd: Crowd | None = None,
    ) -> None:
        self.crowd = crowd or Crowd(for_bodies(None, workers=1, elsewhere_bytes=0))
        self.service = service
        self.pings = pings
        self.reload = reload
        self.debug = debug
        self.wanted = wanted
        self.admin_port: int | None = None
        self.cors: Cors | None = None
        self.passthrough = False
        self.owns: tuple[str, ...] = ()
        self.shared_lines = CommonHeadLines()
        self.application: FastAPI | None = None
        self.realtime: RealtimeDoor | None = None
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["server"][1] == self.admin_port:
            await self._others(scope, receive, send)
            return
        path, passed = scope["path"], None
        if path not in TAKEN or scope["method"] != "POST":
            passed = self.passes(scope, path)
            if passed is None:
                await self._others(scope, receive, send)
                return
        if self.cors is not None:
            send = self.cors.sending(scope["headers"], send)
        # These connections count and clock what comes themselves.
        await self._serve(path, passed, Request(scope, receive), send, None)

    def passes(self, scope: Scope, path: str) -> PassedRequest | None:
        """None for what does not pass to an engine as it came; `path` is without any prefix."""
        if (target := target_of(scope, path)) is None:
            return None
        query = scope["query_string"].decode("latin-1")
        everything = self.passthrough and not path.startswith(self.owns)
        return asked(scope["method"], path, target, query, everything=everything)

    async def serve(
        self, path: str, passed: PassedRequest | None, request: Request, send: Send
    ) -> None:
        """A call that came to a route of the application, over whatever server's connection."""
        with IncomingBody(self.crowd) as incoming:
            await self._serve(path, passed, request, send, incoming)

    async def converse(self, websocket: WebSocket) -> None:
        """A session that came to a route of the application."""
        await websocket.receive()
        assert self.realtime is not None
        receive, send = websocket.receive, websocket.send
        with AsgiSocket(websocket.scope, receive, send, self.crowd) as client:
            await self.realtime.serve(client, self.cors)

    async def _serve(
        self,
        path: str,
        passed: PassedRequest | None,
        request: Request,
        send: Send,
        incoming: IncomingBody | None,
    ) -> None:
        shape = shape_of(path) if passed is None else passed.api.shape
        client = AsgiClient(send, self.debug, self.wanted, self.pings, shape)
        scope, receive = request.scope, request.receive
        request_headers = RequestHeaders(scope["headers"])
        try:
            client.unread = receive
            if request_headers.twice:
                check_host(request_headers.all)
            key_state = self.service.screen(request_headers)
            scope.setdefault("state", {})[LET_IN] = True
            body = await self._read_body(request_headers, request, incoming)
            client.unread = None
        except ClientDisconnect:
            return
        except GatewayError as error:
            refusal = error
        else:
            await self._handle(path, request_headers, body, client, key_state, passed, receive)
            return
        await self.service.refuse(refusal, request_headers, client)

    async def _handle(
        self,
        path: str,
        request_headers: RequestHeaders,
        body: bytes,
        client: "AsgiClient",
        key_state: KeyState | None,
        passed: PassedRequest | None,
        receive: Receive,
    ) -> None:
        serving = asyncio.current_task()
        assert serving is not None
        watching = asyncio.create_task(_cancel_when_client_leaves(serving, receive, client))
        try:
            await self.service.handle(path, request_headers, body, client, key_state, passed)
        except asyncio.CancelledError:
            # Ours if the client left; the server's own, at shutdown, goes on.
            if not (watching.done() and serving.uncancel() == 0):
                raise
        finally:
            watching.cancel()

    async def _read_body(
        self, request_headers: RequestHeaders, request: Request, incoming: IncomingBody | None
    ) -> bytes:
        """Raises ClientDisconnect; TooLarge, OutOfMemory, before reading where the length is said."""
        check_length = self.service.intake.check_length
        if (said := request_headers.named.get(b"content-length")) is not None:
            length = _number(said)
            check_length(length)
            self.crowd.check_room(length)
        if incoming is not None:
            return await incoming.read(request, check_length)
        body = bytearray()
        async with aclosing(request.stream()) as pieces:
            async for piece in pieces:
                body += piece
                check_length(len(body))
        return bytes(body)


class AsgiClient:
    """One client: sink of the answer, and the pump that sends it on.

    Attributes:
        finished: The response is complete.
        unread: Where the rest of a request comes from that was refused half read.
        seconds, seen, due: For `pings`.
    """

    __slots__ = (
        "_answer",
        "_before",
        "_debug",
        "_error",
        "_last",
        "_over",
        "_paused",
        "_pieces",
        "_pings",
        "_send",
        "_shape",
        "_silences",
        "_streams",
        "_waiter",
        "_waiting_bytes",
        "_wanted",
        "due",
        "finished",
        "seconds",
        "seen",
        "unread",
    )

    def __init__(
        self,
        send: Send,
        debug: DebugHeaders | None,
        wanted: frozenset[bytes],
        pings: Pings | None,
        shape: Shape = Shape.OPENAI,
    ) -> None:
        self._send = send
        self._shape = shape
        self._pings = pings
        self.seconds = self.due = 0.0
        self.seen = False
        self._silences: Deadlines | None = None
        self._wanted = wanted
        self._debug = debug
        self._pieces: list[bytes] = []
        self._waiting_bytes = 0
        self._over = False
        self._error: GatewayError | None = None
        self._last = b""
        self._before = b""
        self._waiter: asyncio.Future[None] | None = None
        self._answer: Answer | None = None
        self._paused = False
        self._streams = False
        self.finished = False
        self.unread: Receive | None = None

    # The sink.

    def data(self, chunk: bytes, framed: bytes = b"") -> None:
        self.seen = True
        self._pieces.append(chunk)
        self._waiting_bytes += len(chunk)
        if self._waiting_bytes > MAX_WAITING_BYTES and not self._paused:
            self._paused = True
            assert self._answer is not None
            self._answer.pause()
        self._wake()

    def ended(self, error: GatewayError | None, last: bytes = b"") -> None:
        if last:
            self._pieces.append(last)
        self._over, self._error = True, error
        self._wake()

    def expired(self) -> None:
        """Nothing came for a while."""
        # What waits to be sent says as much.
        if not (self._paused or self._pieces) and self._last.endswith(EVENT_ENDS):
            self._pieces.append(PING)
            self._wake()
        assert self._silences is not None
        self._silences.watch(self, self.seconds)

    # The client.

    async def deliver(self, answer: Answer, record: Record) -> None:
        self._answer = answer
        self._streams = streams(answer)
        # Another attempt may have come to nothing before its first byte.
        self._over, self._error = False, None
        self._paused = False
        head = answer_head(
            answer,
            self._streams,
            record.call.id,
            record.headers if self._debug is None else [*record.headers, *self._debug(record)],
            self._wanted,
        )
        if record.gaps is not None:
            answer = record.gaps.of(answer)
        answer.start(self)
        if not self._pieces and not self._over:
            await self._wait()
        if self._error is not None and not self._pieces:
            raise self._error
        # An answer may go on with one that had begun.
        if record.committed is None:
            record.committed = record.clock()
            # No await suspends between these two unless the client is slow, so head and first
            # event leave in one write.
            await self._send(
                {"type": "http.response.start", "status": answer.status, "headers": head}
            )
        pings = self._pings
        if pings is None or not self._streams:
            await self._pump(answer, record)
            return
        self._silences = silences = pings.silences or pings.begin()
        silences.watch(self, pings.seconds)
        try:
            await self._pump(answer, record)
        finally:
            silences.forget(self)

    async def _pump(self, answer: Answer, record: Record) -> None:
        """Sends on what comes, to its end. Raises what it ended with."""
        while True:
            piece = self._take()
            finished = self._over
            if finished and self._error is not None:
                if piece:
                    await self._body(piece)
                raise self._error
            await self._body(piece, more=not finished)
            if finished:
                # Usage is in the last event but "[DONE]", or in a whole answer.
                record.end_of_answer = self._before + self._last
                return
            if self._paused:
                self._paused = False
                answer.resume()
            if not self._pieces and not self._over:
                await self._wait()

    async def refuse(self, error: GatewayError, call_id: str) -> None:
        status, headers, body = errors.as_response(error, call_id, self._shape)
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        if self.unread is None:
            await self._body(body, more=False)
        else:
            await self._body(body)
            await _discard(self.unread)
            await self._body(b"", more=False)

    async def break_off(self, error: GatewayError) -> None:
        if self._streams:
            await self._body(errors.mid_stream(error, self._last, self._shape), more=False)
        # Half a JSON body has no room for an error. Returning without its end makes the
        # server close the connection, which is how the client learns of it.

    async def _body(self, piece: bytes, more: bool = True) -> None:
        self.finished = not more
        # One of ours tells nothing of the answer.
        if piece and piece is not PING:
            self._before, self._last = self._last, piece
        await self._send({"type": "http.response.body", "body": piece, "more_body": more})

    def _take(self) -> bytes:
        pieces, self._pieces, self._waiting_bytes = self._pieces, [], 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def _number(said: bytes) -> int:
    """Raises BadRequest: of our own connections it is one, and other servers pass on what came."""
    said = said.strip()
    if not said.isdigit() or len(said) > MOST_DIGITS:
        raise BadRequest("the content-length is no number", param="content-length")
    return int(said)


async def _discard(receive: Receive) -> None:
    """What a client still sends: closing on it would lose it the answer (a reset)."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            while (await receive()).get("more_body"):
                pass


async def _cancel_when_client_leaves(
    serving: asyncio.Task[None], receive: Receive, client: AsgiClient
) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    # Servers say "disconnect" also when the response is complete.
    if not client.finished:
        serving.cancel()
