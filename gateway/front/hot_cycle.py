"""HTTP cycle of one hot POST on the fast front end, from its head to the end of its answer.

It collects the request, is the Client of the service and the sink of the answer. An event
goes from the engine's socket to the client's in one callback; before its first byte is out,
nothing is: the head waits here for the first event.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, Protocol

from pdgate.forwarders.base import Answer
from pdgate.forwarders.record import Record
from pdgate.gateway import errors
from pdgate.gateway.deadlines import Deadlines
from pdgate.gateway.front.asgi import Front
from pdgate.gateway.front.continuing import CONTINUE, expects_continue
from pdgate.gateway.front.crowd import Crowd, CrowdMember
from pdgate.gateway.front.limits import SMALL_BYTES
from pdgate.gateway.front.pings import PING
from pdgate.gateway.front.response_head import (
    CLOSE,
    answer_lines,
    head_lines,
    header_lines,
    streams,
)
from pdgate.gateway.request_headers import RequestHeaders
from pdgate.gateway.security.authenticator import KeyState
from pdgate.gateway.service import Service
from pdgate.protocols.apis import shape_of
from pdgate.protocols.call import Headers
from pdgate.protocols.errors import GatewayError, TooLarge
from pdgate.protocols.sse import EVENT_ENDS

_CHUNKED: Final = b"transfer-encoding: chunked\r\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"


_SIZES: Final = tuple(b"%x\r\n" % size for size in range(1024))
"""Of chunks, as they are written before them; most events are no longer than this."""


def _framed(chunk: bytes) -> bytes:
    size = len(chunk)
    return b"".join((_SIZES[size] if size < 1024 else b"%x\r\n" % size, chunk, b"\r\n"))


class HotConnection(CrowdMember, Protocol):
    """What a cycle needs of the connection that it is on; see `hot_protocol.py`.

    Attributes:
        front: What is served here.
        headers: Of the request whose head is complete.
        write_paused: The client does not read what is written.
        tasks: The server waits for these when it is asked to stop.
    """

    front: Front
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    parser: Any
    headers: list[tuple[bytes, bytes]]
    url: bytes
    write_paused: bool
    crowd: Crowd
    server_state: Any
    tasks: set[asyncio.Task[None]]

    def hot_task(
        self,
        cycle: Any,
        service: Service,
        path: str,
        headers: RequestHeaders,
        body: bytes,
        key_state: KeyState | None,
    ) -> Coroutine[Any, Any, None]:
        """Serves the call of the cycle, and tells it when that is over."""

    def check_framing(self, headers: Headers) -> None:
        """Raises what refuses a body that says its length in no way, or in a wrong one."""

    def linger(self) -> None:
        """The request has its answer, and its body is still on its way."""

    def on_complete(self, cycle: Any) -> None:
        """The answer is whole: the next request may come."""


class HotCycle:
    """
    Attributes:
        keep_alive: Whether the connection serves another request afterwards.
        response_complete: Nothing more is sent.
        disconnected: The client has left.
        body_bytes_said: By Content-Length; -1 where it is not.
        seconds, seen, due: For `pings`.
    """

    # An attribute that is first written when some instances have been made finds no room in the keys
    # that they share. The instance makes a dict of its own then, in which each event looks things up.
    __slots__ = (
        "_answer",
        "_before",
        "_body",
        "_chunked",
        "_error",
        "_head",
        "_headers",
        "_held_bytes",
        "_key_state",
        "_last",
        "_over",
        "_pieces",
        "_protocol",
        "_record",
        "_refusal",
        "_silences",
        "_streams",
        "_task",
        "_transport",
        "_url",
        "_waiter",
        "body_bytes_said",
        "disconnected",
        "due",
        "keep_alive",
        "response_complete",
        "seconds",
        "seen",
    )

    def __init__(self, protocol: HotConnection, headers: RequestHeaders) -> None:
        self.keep_alive: bool = protocol.parser.should_keep_alive()
        self._protocol = protocol
        self._transport = protocol.transport
        self._headers = headers
        self._url = protocol.url
        # The first piece of the body, which is all of most; and those behind it.
        self._body = b""
        self._pieces: list[bytes | bytearray] = []
        self.response_complete = False
        self.disconnected = False
        self.body_bytes_said = -1
        # Of the body, as far as it is held.
        self._held_bytes = 0
        self._key_state: KeyState | None = None
        self._refusal: GatewayError | None = None
        self._task: asyncio.Task[None] | None = None
        self._head = b""
        self._chunked = False
        self._last = b""
        self._before = b""
        self._waiter: asyncio.Future[None] | None = None
        self._answer: Answer | None = None
        self._record: Record | None = None
        self._streams = False
        self._over = False
        self._error: GatewayError | None = None
        self._silences: Deadlines | None = None
        self.seconds = 0.0
        self.seen = False
        self.due = 0.0

    # The request, as the parser tells of it.

    def begin(self) -> None:
        protocol = self._protocol
        service = protocol.front.service
        named = self._headers.named
        expects = b"expect" in named and expects_continue(self._headers.all)
        said = named.get(b"content-length")
        if said is None:
            protocol.check_framing(self._headers.all)
        else:
            self.body_bytes_said = int(said)
        try:
            self._key_state = service.screen(self._headers, self.body_bytes_said)
            crowd = protocol.crowd
            if crowd.held_bytes + self.body_bytes_said > crowd.limit_bytes:
                crowd.check_room(self.body_bytes_said)
        except GatewayError as error:
            if error.closes or expects:
                self.turn_away(error)
            else:
                # Said when the body is over, so that the connection can be used again.
                self._refusal = errors.known(error)
            return
        if expects:
            self._transport.write(CONTINUE)

    def more_body(self, piece: bytes) -> None:
        if self.response_complete or self._refusal is not None:
            return
        size = len(piece)
        if not self._held_bytes:
            self._body = piece
        else:
            self._add(piece)
        self._held_bytes += size
        protocol = self._protocol
        crowd = protocol.crowd
        # `Crowd.hold` where there is room, as there mostly is, without a call of it for each piece.
        if crowd.held_bytes + size > crowd.limit_bytes:
            crowd.hold(protocol, size)
        else:
            crowd.held_bytes += size
            protocol.held_bytes += size
        if self.body_bytes_said < 0:
            try:
                self._protocol.front.service.intake.check_length(self._held_bytes)
            except TooLarge as error:
                self.turn_away(error)

    def whole_body(self) -> None:
        if self.response_complete:
            # It was turned away, and has now sent all that it wanted to.
            self._protocol.on_complete(self)
            return
        if self._refusal is not None:
            service = self._protocol.front.service
            service.count_refused(self._refusal)
            self._say(self._refusal, service.intake.call_id(self._headers))
            return
        body, self._body = self._body, b""
        if self._pieces:
            body = b"".join((body, *self._pieces))
            self._pieces = []
        protocol = self._protocol
        path, service = self._url.decode("ascii"), protocol.front.service
        self._task = task = protocol.loop.create_task(
            protocol.hot_task(self, service, path, self._headers, body, self._key_state)
        )
        # The server waits for these when it is asked to stop.
        protocol.tasks.add(task)

    @property
    def asked(self) -> bool:
        """The request is whole, and its call on the way."""
        return self._task is not None

    @property
    def let_in(self) -> bool:
        """The caller may call: what its answer takes is not a stranger's."""
        return self._task is not None

    @property
    def has_begun(self) -> bool:
        """It has its answer, though it is not whole itself."""
        return self.response_complete

    def client_left(self) -> None:
        self.disconnected = True
        if self._task is None:
            self._give_back()
        elif not self.response_complete:
            self._task.cancel()
            # One that had not begun ends without running a line of it.
            self._task.add_done_callback(lambda _: self.task_ended())

    def turn_away(self, error: GatewayError) -> None:
        """Answers before the body is here; the connection cannot be used after that.

        It stays open for a while: closing on a client that sends would lose it the answer.
        """
        if self.response_complete:
            self._protocol.cut()
            return
        protocol = self._protocol
        service = protocol.front.service
        service.count_refused(error)
        call_id, shape = service.intake.call_id(self._headers), shape_of(self._url.decode("ascii"))
        status, headers, body = errors.as_response(error, call_id, shape)
        self.keep_alive = False
        # Some say so themselves.
        if (cors := protocol.front.cors) is not None:
            headers = [*headers, *cors.headers_for(self._headers.all)]
        more = b"" if error.closes else CLOSE
        self._write(head_lines(status, headers, more) + body)
        self.response_complete = True
        self._give_back()
        protocol.linger()

    def pause(self) -> None:
        if self._answer is not None and not self._over:
            self._answer.pause()

    def resume(self) -> None:
        if self._answer is not None and not self._over:
            self._answer.resume()

    # Its task.

    def abort(self) -> None:
        self._transport.abort()

    def task_ended(self) -> None:
        held, self._held_bytes = self._held_bytes, 0
        if held:
            # `Crowd.free`.
            self._protocol.crowd.held_bytes -= held
            self._protocol.held_bytes -= held
        assert self._task is not None
        self._protocol.tasks.discard(self._task)

    # The sink.

    def data(self, chunk: bytes, framed: bytes = b"") -> None:
        self.seen = True
        self._before = self._last
        self._last = chunk
        if self._chunked:
            # Most come as they go out.
            chunk = framed or _framed(chunk)
        if self._head or self.disconnected:
            self._write(chunk)
        else:
            # Nearly all of them, straight away.
            self._transport.write(chunk)

    def ended(self, error: GatewayError | None, last: bytes = b"") -> None:
        self._over, self._error = True, error
        rest = _framed(last) if last and self._chunked else last
        if error is None:
            assert self._record is not None
            # Usage is in the last event but "[DONE]", or in a whole answer.
            self._record.end_of_answer = self._before + self._last + last
            self._write(rest + _LAST_CHUNK if self._chunked else rest)
            self.response_complete = True
            self._protocol.on_complete(self)
        elif rest:
            self._last = last
            self._write(rest)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def expired(self) -> None:
        """Nothing came for a while."""
        if self._last.endswith(EVENT_ENDS) and not self._protocol.write_paused:
            self._write(self._framed(PING))
        assert self._silences is not None
        self._silences.watch(self, self.seconds)

    # The client.

    async def deliver(self, answer: Answer, record: Record) -> None:
        self._answer, self._record = answer, record
        self._forget()
        if record.committed is None:
            front = self._protocol.front
            # As a method it would be looked up anew each time.
            debug = front.debug
            told = front.shared_lines.told(record.headers) if record.headers else b""
            lines, self._streams, sized = answer_lines(
                answer,
                record.call.id,
                told if debug is None else told + header_lines(debug(record)),
                front.wanted,
            )
            self._chunked = not sized
            if not sized:
                lines += _CHUNKED
            if not self.keep_alive or front.cors is not None:
                lines += self._ending()
            self._head = front.shared_lines.head(
                answer.status, self._protocol.server_state.default_headers, lines
            )
        else:
            self._streams = streams(answer)
        if self._protocol.write_paused:
            # Of answers before this one, or of the part of it that another attempt gave.
            answer.pause()
        if record.gaps is not None:
            answer = record.gaps.of(answer)
        answer.start(self)
        if not self._over:
            self._waiter = self._protocol.loop.create_future()
            pings = self._protocol.front.pings
            if pings is None or not self._streams:
                await self._waiter
            else:
                silences = self._silences = pings.silences or pings.begin()
                self.seconds, self.due = pings.seconds, 0.0
                silences.add(self)
                if silences.timer is None:
                    silences.wind()
                try:
                    await self._waiter
                finally:
                    # As a method it would be looked up anew each time.
                    forget = silences.forget
                    forget(self)
        if self._error is not None:
            raise self._error

    async def refuse(self, error: GatewayError, call_id: str) -> None:
        self._say(error, call_id)

    def _say(self, error: GatewayError, call_id: str) -> None:
        shape = shape_of(self._url.decode("ascii"))
        status, headers, body = errors.as_response(error, call_id, shape)
        # An answer may have been about to begin.
        self._head = b""
        protocol = self._protocol
        head = protocol.front.shared_lines.head(
            status, protocol.server_state.default_headers, header_lines(headers) + self._ending()
        )
        self._write(head + body)
        self._complete()

    async def break_off(self, error: GatewayError) -> None:
        if self._streams:
            event = errors.mid_stream(error, self._last, shape_of(self._url.decode("ascii")))
            self._write(self._framed(event) + _LAST_CHUNK)
            self._complete()
        else:
            # Half a JSON body has no room for an error: the client learns it from the cut.
            self._transport.close()

    # How.

    def _forget(self) -> None:
        """Another attempt may have come to nothing before its first byte.

        A method: set in `deliver` itself, the error would be None for mypyc to the end of that, whatever
        comes while it waits, and what raises it unreachable.
        """
        self._over, self._error = False, None

    def _add(self, piece: bytes) -> None:
        """To the body, behind its first piece."""
        pieces = self._pieces
        if len(piece) >= SMALL_BYTES:
            pieces.append(piece)
            return
        last = pieces[-1] if pieces else b""
        if isinstance(last, bytearray):
            last += piece
        else:
            pieces.append(bytearray(piece))

    def _give_back(self) -> None:
        self._body, self._pieces = b"", []
        if self._held_bytes:
            self._protocol.crowd.free(self._protocol, self._held_bytes)
            self._held_bytes = 0

    def _ending(self) -> bytes:
        """The last lines of a head."""
        cors = self._protocol.front.cors
        more = b"" if cors is None else header_lines(cors.headers_for(self._headers.all))
        return more if self.keep_alive else more + CLOSE

    def _framed(self, chunk: bytes) -> bytes:
        return _framed(chunk) if self._chunked else chunk

    def _write(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
            assert self._record is not None
            clock = self._record.clock
            self._record.committed = clock()
        if data and not self.disconnected:
            self._transport.write(data)

    def _complete(self) -> None:
        self.response_complete = True
        self._protocol.on_complete(self)
