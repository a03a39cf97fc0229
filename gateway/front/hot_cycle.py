"""One hot POST on a connection of the fast front end, from its head to the end of its answer.

It collects the request, is the Client of the service and the sink of the answer. An event
goes from the engine's socket to the client's in one callback; before its first byte is out,
nothing is: the head waits here for the first event.
"""

import asyncio
from typing import Any, Final, Protocol

from pdgate.forwarders.base import Answer
from pdgate.forwarders.record import Record
from pdgate.gateway import errors
from pdgate.gateway.front.answer_head import answer_lines, streams
from pdgate.gateway.front.asgi import LINGER_SECONDS, Front
from pdgate.gateway.front.head_lines import CLOSE, head_lines, header_lines, status_line
from pdgate.gateway.front.pings import PING
from pdgate.gateway.heads import Heads
from pdgate.gateway.security.door import Holder
from pdgate.protocols import sse
from pdgate.protocols.apis import shape_of
from pdgate.protocols.call import Headers
from pdgate.protocols.errors import Draining, GatewayError, TooLarge

_CHUNKED: Final = b"transfer-encoding: chunked\r\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


_SIZES: Final = tuple(b"%x\r\n" % size for size in range(1024))
"""Of chunks, as they are written before them; most events are no longer than this."""


def _framed(chunk: bytes) -> bytes:
    size = len(chunk)
    return b"".join((_SIZES[size] if size < 1024 else b"%x\r\n" % size, chunk, b"\r\n"))


class Connection(Protocol):
    """What a cycle needs of the connection that it is on; the names are uvicorn's.

    Attributes:
        front: What is served here.
        headers: Of the request whose head is complete.
        flow: Whether the client reads what is written.
        tasks: The server waits for these when it is asked to stop.
    """

    front: Front
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    parser: Any
    headers: list[tuple[bytes, bytes]]
    url: bytes
    expect_100_continue: bool
    flow: Any
    server_state: Any
    tasks: set[asyncio.Task[None]]

    def check_framing(self, headers: Headers) -> None:
        """Raises what refuses a body that says its length in no way, or in a wrong one."""

    def on_hot_complete(self) -> None:
        """The answer is whole: the next request may come."""


class _Nobody:
    """uvicorn sets an event when the client leaves; nobody waits for ours."""

    def set(self) -> None: ...


class HotCycle:
    """
    Attributes:
        response_complete, disconnected, keep_alive, message_event: Read by uvicorn.
        seen: For `pings`.
    """

    seen = False

    message_event = _Nobody()
    _lingering: asyncio.TimerHandle | None = None
    _answer: Answer | None = None
    _record: Record | None = None
    _streams = False
    _over = False
    _error: GatewayError | None = None
    _held = b""

    def __init__(self, protocol: Connection) -> None:
        self.keep_alive: bool = protocol.parser.should_keep_alive()
        self._protocol = protocol
        self._transport = protocol.transport
        self._headers = protocol.headers
        self._heads = Heads(protocol.headers)
        self._url = protocol.url
        self._pieces: list[bytes] = []
        # What is read before it is written is not left to the class, where it takes ten times as long.
        self.response_complete = False
        self.disconnected = False
        # Of a body whose length was not said.
        self._read_bytes = -1
        self._holder: Holder | None = None
        self._refusal: GatewayError | None = None
        self._task: asyncio.Task[None] | None = None
        self._head = b""
        self._chunked = False
        self._last = b""
        self._before = b""
        self._waiter: asyncio.Future[None] | None = None

    # The request, as uvicorn's parser tells of it.

    def begin(self) -> None:
        protocol = self._protocol
        service = protocol.front.service
        said = self._heads.named.get(b"content-length")
        if said is None:
            protocol.check_framing(self._headers)
            self._read_bytes = 0
        try:
            if said is not None:
                service.intake.check_length(int(said))
            self._holder = service.screen(self._heads)
        except (TooLarge, Draining) as error:
            self._turn_away(error)
            return
        except GatewayError as error:
            # Said when the body is over, so that the connection can be used again.
            self._refusal = error
            if protocol.expect_100_continue:
                self._turn_away(error)
            return
        if protocol.expect_100_continue:
            self._transport.write(_CONTINUE)

    def more_body(self, piece: bytes) -> None:
        if self.response_complete:
            return
        if self._refusal is None:
            self._pieces.append(piece)
        if self._read_bytes < 0:
            return
        self._read_bytes += len(piece)
        try:
            self._protocol.front.service.intake.check_length(self._read_bytes)
        except TooLarge as error:
            self._turn_away(error)

    def whole_body(self) -> None:
        if self.response_complete:
            # It was turned away, and has now sent all that it wanted to.
            self._transport.close()
            return
        if self._refusal is not None:
            service = self._protocol.front.service
            service.count_refused(self._refusal)
            self._say(self._refusal, service.intake.call_id(self._heads))
            return
        pieces, self._pieces = self._pieces, []
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        protocol = self._protocol
        path = self._url.decode("ascii")
        self._task = task = protocol.loop.create_task(self._serve(path, body))
        # The server waits for these when it is asked to stop.
        protocol.tasks.add(task)

    @property
    def asked(self) -> bool:
        """The request is whole, and its call on the way."""
        return self._task is not None

    @property
    def turned_away(self) -> bool:
        """It was answered before its body was here."""
        return self._lingering is not None

    def client_left(self) -> None:
        self.disconnected = True
        if self._lingering is not None:
            self._lingering.cancel()
        if self._task is not None and not self.response_complete:
            self._task.cancel()

    def pause(self) -> None:
        if self._answer is not None and not self._over:
            self._answer.pause()

    def resume(self) -> None:
        if self._answer is not None and not self._over:
            self._answer.resume()

    # The sink.

    def data(self, chunk: bytes, framed: bytes = b"") -> None:
        if self._streams and (self._held or not chunk.endswith(b"\n\n")):
            chunk, self._held = sse.whole(self._held, chunk)
            if not chunk:
                return
            framed = b""
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
        if self._streams and error is not None:
            last, _ = sse.whole(self._held, last)
        elif self._held:
            last = self._held + last
        rest = self._framed(last) if last else b""
        if error is None:
            assert self._record is not None
            # Usage is in the last event but "[DONE]", or in a whole answer.
            self._record.end_of_answer = self._before + self._last + last
            self._write(rest + _LAST_CHUNK if self._chunked else rest)
            self._complete()
        elif rest:
            self._last = last
            self._write(rest)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def expired(self) -> None:
        """Nothing came for a while."""
        if self._last.endswith(b"\n\n") and not self._protocol.flow.write_paused:
            self._write(self._framed(PING))

    # The client.

    async def deliver(self, answer: Answer, record: Record) -> None:
        self._answer, self._record = answer, record
        self._forget()
        if record.committed is None:
            front = self._protocol.front
            lines, self._streams, sized = answer_lines(
                answer, record.call.id, front.debug(record), front.wanted
            )
            self._chunked = not sized
            self._head = self._head_of(answer.status, lines, b"" if sized else _CHUNKED)
        else:
            self._streams = streams(answer)
            if self._protocol.flow.write_paused:
                # It goes on with an answer that had begun, and was told nothing of the client.
                answer.pause()
        answer.start(self if record.gaps is None else record.gaps.sink(self))
        if not self._over:
            self._waiter = self._protocol.loop.create_future()
            pings = self._protocol.front.pings
            if pings is None or not self._streams:
                await self._waiter
            else:
                with pings.during(self):
                    await self._waiter
        if self._error is not None:
            raise self._error

    async def refuse(self, error: GatewayError, call_id: str) -> None:
        self._say(error, call_id)

    def _say(self, error: GatewayError, call_id: str) -> None:
        shape = shape_of(self._url.decode("ascii"))
        status, headers, body = errors.as_response(error, call_id, shape)
        # An answer may have been about to begin.
        self._head = b""
        self._write(self._head_of(status, header_lines(headers), b"") + body)
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
        """Another attempt may have come to nothing before its first byte."""
        self._over, self._error, self._held = False, None, b""

    async def _serve(self, path: str, body: bytes) -> None:
        try:
            service = self._protocol.front.service
            await service.handle(path, self._heads, body, self, self._holder)
        except asyncio.CancelledError:
            # The client left, or the server gave up waiting for us at shutdown.
            if not self.disconnected:
                self._transport.abort()
                raise
        except BaseException:
            # A bug of ours must not leave the client waiting.
            self._transport.abort()
            raise
        finally:
            assert self._task is not None
            self._protocol.tasks.discard(self._task)

    def _turn_away(self, error: GatewayError) -> None:
        """Answers before the body is here; the connection cannot be used after that.

        It stays open for a while: closing on a client that sends would lose it the answer.
        """
        protocol = self._protocol
        service = protocol.front.service
        service.count_refused(error)
        call_id, shape = service.intake.call_id(self._heads), shape_of(self._url.decode("ascii"))
        status, headers, body = errors.as_response(error, call_id, shape)
        self.keep_alive = False
        self._pieces = []
        # Some say so themselves.
        if (cors := protocol.front.cors) is not None:
            headers = [*headers, *cors.headers_for(self._headers)]
        more = b"" if error.closes else CLOSE
        self._write(head_lines(status, headers, more) + body)
        self.response_complete = True
        self._lingering = protocol.loop.call_later(LINGER_SECONDS, self._transport.close)

    def _head_of(self, status: int, lines: bytes, more: bytes) -> bytes:
        front = self._protocol.front
        shared = front.shared_lines.of(self._protocol.server_state.default_headers)
        if front.cors is not None:
            lines += header_lines(front.cors.headers_for(self._headers))
        closing = b"" if self.keep_alive else CLOSE
        return b"".join((status_line(status), shared, lines, more, closing, b"\r\n"))

    def _framed(self, chunk: bytes) -> bytes:
        return _framed(chunk) if self._chunked else chunk

    def _write(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
            assert self._record is not None
            self._record.committed = self._record.clock()
        if data and not self.disconnected:
            self._transport.write(data)

    def _complete(self) -> None:
        self.response_complete = True
        if not self.keep_alive:
            self._transport.close()
        self._protocol.on_hot_complete()
