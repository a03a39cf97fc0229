"""The fast front end: uvicorn's own protocol class takes the hot POSTs.

    socket -- HotProtocol --hot POST--> HotCycle --> service
                  '--everything else--> uvicorn --> ASGI (asgi.Front --> FastAPI)

No scope, no receive and send, one task a call; pieces of an answer go from the engine's
socket to the client's by callback, and head and first event leave in one write, which
ASGI cannot do. It leans on names inside uvicorn (`NEEDED`), so a uvicorn that lacks
them, or is outside the tested range, gets the ASGI front end alone, and the log says so.
"""

import asyncio
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from pdgate.forwarders.base import Answer
from pdgate.forwarders.record import Record
from pdgate.gateway import errors
from pdgate.gateway.answer_head import answer_head, streams
from pdgate.gateway.asgi import LINGER_SECONDS, Front
from pdgate.gateway.bounded_http import BoundedHttp
from pdgate.gateway.head_lines import CLOSE, head_lines
from pdgate.gateway.intake import HOT_PATHS
from pdgate.gateway.pings import PING
from pdgate.gateway.security.door import Holder
from pdgate.protocols import sse
from pdgate.protocols.call import Headers
from pdgate.protocols.errors import BadRequest, Draining, GatewayError, TooLarge

TESTED = ((0, 40), (0, 55))
"""uvicorn from the first version on, below the second."""

NEEDED = (
    "connection_lost",
    "on_body",
    "on_header",
    "on_headers_complete",
    "on_message_begin",
    "on_message_complete",
    "on_response_complete",
    "on_url",
    "pause_writing",
    "resume_writing",
    "send_400_response",
)

_HOT_URLS = frozenset(path.encode() for path in HOT_PATHS)
_CHUNKED = b"transfer-encoding: chunked\r\n"
_LAST_CHUNK = b"0\r\n\r\n"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def why_not() -> str | None:
    """Why this uvicorn cannot carry the fast front end; None if it can."""
    version = tuple(int(part) for part in uvicorn.__version__.split(".")[:2])
    if not TESTED[0] <= version < TESTED[1]:
        return f"uvicorn {uvicorn.__version__} is not among the tested versions"
    missing = [name for name in NEEDED if not hasattr(HttpToolsProtocol, name)]
    return f"uvicorn's protocol has no {', '.join(missing)}" if missing else None


class HotProtocol(BoundedHttp):
    """One client connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        front = self.config.loaded_app
        if not isinstance(front, Front):
            raise TypeError("HotProtocol serves pdgate's Front only, with no middleware around it")
        self.front = front
        # Not always uvicorn's `cycle`, which is the last of those that were pipelined.
        self._hot: HotCycle | None = None
        # None while a request is on its way in or is served.
        self._idle_since: float | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._hot_urls = _HOT_URLS

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        assert self.server is not None
        if self.server[1] == self.front.admin_port:
            self._hot_urls = frozenset()

    def on_message_begin(self) -> None:
        # uvicorn makes an ASGI scope here; a hot call needs none.
        self.head_begins()
        self._idle_since = None
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_headers_complete(self) -> None:
        if self._is_hot():
            self.head_ends()
            self._hot = HotCycle(self)
            # The names that uvicorn reads of a cycle are there.
            self.cycle = self._hot  # type: ignore[assignment]
            self._hot.begin()
            self.leave_trailers()
            return
        url, headers, expect = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expect
        self.headers.extend(headers)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        cycle = self.cycle
        if isinstance(cycle, HotCycle):
            self.body_goes_on()
            cycle.more_body(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        cycle = self.cycle
        if isinstance(cycle, HotCycle):
            self.body_goes_on()
            cycle.whole_body()
        else:
            super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._hot is not None:
            self._hot.client_left()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        super().connection_lost(exc)

    def on_hot_complete(self) -> None:
        """As on_response_complete, but a timer outlives the calls instead of one for each."""
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        self._idle_since = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._close_if_idle)

    def _close_if_idle(self) -> None:
        self._idle_timer = None
        # uvicorn has a timer of its own after a request that was its own.
        if self._idle_since is None or self.timeout_keep_alive_task is not None:
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._idle_timer = self.loop.call_later(left, self._close_if_idle)
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._hot is not None:
            self._hot.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._hot is not None:
            self._hot.resume()

    def send_400_response(self, msg: str) -> None:
        for cycle in (self._hot, self.cycle):
            if cycle is not None and _is_whole(cycle) and not cycle.response_complete:
                # That request was good: it is answered, and nothing after it is.
                cycle.keep_alive = False
                return
        if isinstance(self.cycle, HotCycle) and self.cycle.turned_away:
            # It has its answer.
            self.transport.close()
            return
        status, headers, body = errors.as_response(self.refusal or BadRequest(msg))
        self.transport.write(head_lines(status, headers, CLOSE) + body)
        self.transport.close()

    def _is_hot(self) -> bool:
        """Pipelined and HTTP/1.0 requests are rare, so uvicorn may have them."""
        return (
            self.url in self._hot_urls
            and self.parser.get_method() == b"POST"
            and self.parser.get_http_version() == "1.1"
            and (self.cycle is None or self.cycle.response_complete)
            and not self.parser.should_upgrade()
        )


def _is_whole(cycle: "HotCycle | RequestResponseCycle") -> bool:
    """The request has been read to its end."""
    return cycle.asked if isinstance(cycle, HotCycle) else not cycle.more_body


class _Nobody:
    """uvicorn sets an event when the client leaves; nobody waits for ours."""

    def set(self) -> None: ...


class HotCycle:
    """One hot POST: collects the request, is the Client of the service, sink of the answer.

    Attributes:
        response_complete, disconnected, keep_alive, message_event: Read by uvicorn.
        seen: For `pings`.
    """

    seen = False

    response_complete = False
    disconnected = False
    message_event = _Nobody()
    _length = 0
    _holder: Holder | None = None
    _refusal: GatewayError | None = None
    _lingering: asyncio.TimerHandle | None = None
    _task: asyncio.Task[None] | None = None
    _answer: Answer | None = None
    _record: Record | None = None
    _head = b""
    _chunked = False
    _streams = False
    _over = False
    _error: GatewayError | None = None
    _held = b""
    _last = b""
    _waiter: asyncio.Future[None] | None = None

    def __init__(self, protocol: HotProtocol) -> None:
        self.keep_alive: bool = protocol.parser.should_keep_alive()
        self._protocol = protocol
        self._transport = protocol.transport
        self._headers = protocol.headers
        self._pieces: list[bytes] = []

    # The request, as uvicorn's parser tells of it.

    def begin(self) -> None:
        protocol = self._protocol
        service = protocol.front.service
        length = next(
            (int(found) for name, found in self._headers if name == b"content-length"), -1
        )
        if length < 0:
            protocol.check_framing(self._headers)
        try:
            service.intake.check_length(length)
            self._holder = service.screen(self._headers)
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
        self._length += len(piece)
        try:
            self._protocol.front.service.intake.check_length(self._length)
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
            self._say(self._refusal, service.intake.call_id(self._headers))
            return
        pieces, self._pieces = self._pieces, []
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        protocol = self._protocol
        path = protocol.url.decode("ascii")
        self._task = task = protocol.loop.create_task(self._serve(path, self._headers, body))
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

    def data(self, chunk: bytes) -> None:
        if self._streams and (self._held or not chunk.endswith(b"\n\n")):
            chunk, self._held = sse.whole(self._held, chunk)
            if not chunk:
                return
        self.seen = True
        self._last = chunk
        self._write(self._framed(chunk))

    def ended(self, error: GatewayError | None, last: bytes = b"") -> None:
        self._over, self._error = True, error
        if self._streams and error is not None:
            last, _ = sse.whole(self._held, last)
        elif self._held:
            last = self._held + last
        rest = self._framed(last) if last else b""
        if error is None:
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
        # Another attempt may have come to nothing before its first byte.
        self._over, self._error, self._held = False, None, b""
        self._streams = streams(answer)
        if record.committed is None:
            front = self._protocol.front
            more = front.debug(record)
            headers = answer_head(answer, self._streams, record.call.id, more, front.wanted)
            self._chunked = not any(name == b"content-length" for name, _ in headers)
            self._head = self._head_of(answer.status, headers, _CHUNKED if self._chunked else b"")
        elif self._protocol.flow.write_paused:
            # It goes on with an answer that had begun, and was told nothing of the client.
            answer.pause()
        answer.start(self)
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
        status, headers, body = errors.as_response(error, call_id)
        # An answer may have been about to begin.
        self._head = b""
        self._write(self._head_of(status, headers, b"") + body)
        self._complete()

    async def break_off(self, error: GatewayError) -> None:
        if self._streams:
            self._write(self._framed(errors.mid_stream(error, self._last)) + _LAST_CHUNK)
            self._complete()
        else:
            # Half a JSON body has no room for an error: the client learns it from the cut.
            self._transport.close()

    # How.

    async def _serve(self, path: str, headers: Headers, body: bytes) -> None:
        try:
            service = self._protocol.front.service
            await service.handle(path, headers, body, self, self._holder)
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
        status, headers, body = errors.as_response(error, service.intake.call_id(self._headers))
        self.keep_alive = False
        self._pieces = []
        # Some say so themselves.
        if (cors := protocol.front.cors) is not None:
            headers = [*headers, *cors.headers_for(self._headers)]
        more = b"" if error.closes else CLOSE
        self._write(head_lines(status, headers, more) + body)
        self.response_complete = True
        self._lingering = protocol.loop.call_later(LINGER_SECONDS, self._transport.close)

    def _head_of(self, status: int, headers: Headers, more: bytes) -> bytes:
        default = self._protocol.server_state.default_headers
        if (cors := self._protocol.front.cors) is not None:
            headers = [*headers, *cors.headers_for(self._headers)]
        closing = b"" if self.keep_alive else CLOSE
        return head_lines(status, [*default, *headers], more + closing)

    def _framed(self, chunk: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(chunk), chunk) if self._chunked else chunk

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
