"""Client connection: HTTP/1.1 (and 1.0) requests in, each served by a cycle of its own.

    socket -- HotProtocol --hot POST--> HotCycle --> service
                    |--everything else--> AsgiCycle --> asgi.Front --> FastAPI
                    '--WebSocket-------> SocketOpening, and the connection is socket_client.py's from then on
                      (another protocol, such as h2c, is declined: AsgiCycle, as if it had not been asked for)

A hot call has no scope, no receive and send, and one task; pieces of its answer go from the
engine's socket to the client's by callback, and head and first event leave in one write.

One request is served at a time. What comes before its answer is out is kept as it came, up to
MAX_EARLY_BYTES, and given to the parser in slices, so that few requests are made of it before
their turn. While the client does not read what is written, nothing is read of it. The bounds are
those of `limits.py`, memory is `crowd.py`'s, and one clock for all (`look`) does without timers.

uvicorn's server makes these (`Config.http`), and asks of them: `shutdown`, a place in its
`connections`, and in its `tasks` what it waits for. Source: uvicorn 0.54, server.py; llhttp 9 by
httptools 0.9.
"""

import asyncio
import logging
from typing import Any, Final

import httptools
import uvicorn
from uvicorn.server import ServerState

from pdgate.gateway import errors
from pdgate.gateway.front import limits
from pdgate.gateway.front.addresses import local_address, peer_has_left
from pdgate.gateway.front.asgi import Front
from pdgate.gateway.front.asgi_cycle import AsgiCycle
from pdgate.gateway.front.crowd import BODY, HEAD, LINGERING, WAITING, Clock, Overdue
from pdgate.gateway.front.hot_cycle import HotCycle
from pdgate.gateway.front.limits import (
    FIRST_BYTES,
    MAX_EARLY_BYTES,
    MAX_EARLY_REQUESTS,
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    SLICE_BYTES,
    TLS_BUFFER_BYTES,
)
from pdgate.gateway.front.response_head import CLOSE, head_lines
from pdgate.gateway.front.socket_client import SocketOpening, opening_of
from pdgate.gateway.intake import TAKEN
from pdgate.gateway.request_headers import RequestHeaders
from pdgate.gateway.security.authenticator import KeyState
from pdgate.gateway.service import Service
from pdgate.protocols.call import Headers
from pdgate.protocols.errors import BadRequest, ClientTooSlow, GatewayError, HeadTooLarge

log = logging.getLogger(__name__)

_FIRST_LINES: Final = {path.encode(): f"POST {path} HTTP/1.1\r\n".encode() for path in TAKEN}
"""Of the requests that are hot, by their targets."""

HEADER_BYTES: Final = 200
"""That a header takes besides its own bytes, while its head is on its way: two objects, a tuple and a place."""

EARLY_BYTES: Final = 1500
"""That a request which came early takes, besides what it brought."""

TLS_BYTES: Final = 64 << 10
"""That a connection over TLS takes: OpenSSL, and buffers for reads and writes up to SLICE_BYTES."""

TLS_BYTES_PER_BYTE: Final = 3
"""Of its longest read or write. Both loops keep a buffer for each connection, and OpenSSL one that is a third larger."""

TLS_READ_BYTES: Final = 256 << 10
"""The longest read there is, which nobody is told of while reading is paused. Source: uvloop 0.23, consts.pxi; asyncio, sslproto.py."""

Cycle = HotCycle | AsgiCycle | SocketOpening


class HotProtocol(asyncio.Protocol):
    """
    Attributes:
        cycle: Of the request that the parser reads, or has read last.
        headers, url: Of that request, while its head is read.
        stage: How far the parser is: WAITING for a request, in its HEAD or its BODY, or LINGERING:
            in a body that has been refused.
        requests: That have begun.
        body_bytes: Of the last one's body, read so far.
        write_paused: The client does not read what is written.
        loose_bytes, held_bytes: See `crowd.py`.
        tcp: What carries the transport; None without TLS.
    """

    __slots__ = (
        "_asked_for_turn",
        "_begun_in",
        "_clock",
        "_deaf",
        "_early",
        "_farewell",
        "_first_lines",
        "_head_bytes",
        "_longest_for_tls",
        "_parked",
        "_read",
        "_reading_paused",
        "_serving",
        "_skipped",
        "_unread_bytes",
        "_writable",
        "app_state",
        "body_bytes",
        "crowd",
        "cycle",
        "front",
        "headers",
        "held_bytes",
        "keep_alive_seconds",
        "loop",
        "loose_bytes",
        "parser",
        "requests",
        "server_state",
        "shared_lines",
        "stage",
        "tasks",
        "tcp",
        "transport",
        "url",
        "write_paused",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        front = config.loaded_app
        if not isinstance(front, Front):
            raise TypeError("HotProtocol serves pdgate's Front only, with nothing around it")
        self.front = front
        self.crowd = front.crowd
        self.shared_lines = front.shared_lines
        self.loop = _loop or asyncio.get_running_loop()
        self.server_state = server_state
        self.tasks = server_state.tasks
        self.app_state = app_state
        self.keep_alive_seconds: float = config.timeout_keep_alive
        # None where the connection is gone: they know each other.
        self.parser: Any = self._new_parser()
        self.stage = WAITING
        self.requests = 0
        self.body_bytes = 0
        self.loose_bytes = self.held_bytes = self._unread_bytes = 0
        self.write_paused = False
        self.tcp: asyncio.Transport | None = None
        self._longest_for_tls = 0
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.cycle: Cycle | None = None
        # Whose answer is under way; not `cycle` where requests came early.
        self._serving: Cycle | None = None
        self._early: list[AsgiCycle] = []
        self._parked: bytearray | None = None
        self._asked_for_turn = False
        # What the parser is reading, until the first request in it is over; and the read in which
        # a request began, if nothing else did before it.
        self._read = self._begun_in = b""
        # Read since the last piece of a body: of a head, of trailers or of chunk extensions.
        self._head_bytes = 0
        self._reading_paused = False
        self._writable: asyncio.Event | None = None
        # There is nothing more to say to what still comes; an answer under way may be.
        self._deaf = False
        # How the body of one that asked for another protocol is framed, while that is skipped.
        self._skipped = b""
        self._clock = Clock()
        self._farewell: asyncio.TimerHandle | None = None

    # What the transport tells.

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.server_state.connections.add(self)  # type: ignore[arg-type]
        self.crowd.join(self, self.loop)
        if self.tcp is not None:
            transport.set_write_buffer_limits(high=TLS_BUFFER_BYTES)
            transport.set_read_buffer_limits(high=TLS_BUFFER_BYTES)
            self.crowd.weigh_stranger(self)
        port = local_address(transport)[1]
        self._first_lines = {} if port == self.front.admin_port else _FIRST_LINES

    def connection_lost(self, exc: Exception | None) -> None:
        self.server_state.connections.discard(self)
        self._deaf = True
        self._parked = None
        self._now_unread(0)
        self._leave_crowd()
        if self._farewell is not None:
            self._farewell.cancel()
        if self._serving is not None:
            self._serving.client_left()
        self._forget_early()
        self._wake_writers()
        # They know us: until Python looks for such circles, TLS would keep its buffers.
        self.parser = self.cycle = self._serving = None

    def eof_received(self) -> None:
        """A client that says no more is not waited for with an answer: the transport closes."""

    def data_received(self, data: bytes) -> None:
        if self._parked is not None or (
            # Mostly nothing is served when something comes, and nothing unread.
            (self._serving is not None or self.write_paused) and self._busy
        ):
            self.note_for_tls(len(data))
            self._park(data)
        elif len(data) <= SLICE_BYTES:
            self._feed(data, data)
        else:
            view = memoryview(data)
            contended = self.crowd.turns.contended
            given = self._feed_slice(view, data, FIRST_BYTES if contended else SLICE_BYTES)
            if given < len(data):
                self._park(view[given:])
                self._go_on()
            # Here the head has been read, and it is known whose it is.
            self.note_for_tls(len(data))

    def pause_writing(self) -> None:
        self.write_paused = True
        self._pause_reading()
        self._weigh()
        if isinstance(self._serving, HotCycle):
            self._serving.pause()

    def resume_writing(self) -> None:
        self.write_paused = False
        self._weigh()
        if isinstance(self._serving, HotCycle):
            self._serving.resume()
        self._wake_writers()
        self._go_on()

    # What uvicorn's server tells.

    def shutdown(self) -> None:
        """The server ends: no request is begun after this, but one may be on its way.

        A client that has only just been accepted has seen nothing of an end, and would be cut off;
        those that have had an answer know that a connection that was kept can be gone.
        """
        if self.cycle is None and self._farewell is None:
            self._farewell = self.loop.call_later(limits.FAREWELL_SECONDS, self.shutdown)
        elif self._serving is None:
            self.transport.close()
        else:
            self._last_one().keep_alive = False

    # What the parser tells.

    def on_message_begin(self) -> None:
        self.stage = HEAD
        self.requests += 1
        self._begun_in = self._read
        self.url = b""

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if len(self.headers) > MAX_HEADERS:
            raise _too_many()
        # Most heads come in one small read, which also says that they are small.
        if self._head_bytes > MAX_HEAD_BYTES:
            lengths = (len(name) + len(found) + 4 for name, found in self.headers)
            if len(self.url) + sum(lengths) > MAX_HEAD_BYTES:
                raise _too_large()
        self._head_bytes = 0
        self.stage = BODY
        self.body_bytes = 0
        if self._deaf:
            return
        if self._is_hot():
            headers = RequestHeaders(self.headers)
            if headers.twice:
                limits.check_host(self.headers)
            self.cycle = self._serving = cycle = HotCycle(self, headers)
            cycle.begin()
        else:
            self._begin_asgi()
        # What the parser still finds are trailers, which nothing reads.
        self.headers = []

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        self.body_bytes += len(body)
        cycle = self.cycle
        assert cycle is not None
        if not self._deaf:
            cycle.more_body(body)

    def on_message_complete(self) -> None:
        self.stage = WAITING
        self._read = self._begun_in = b""
        self._head_bytes = 0
        if self.headers:
            self._end_trailers()
        cycle = self.cycle
        assert cycle is not None
        if not self._deaf:
            cycle.whole_body()
        elif cycle is self._serving and cycle.response_complete:
            # It was turned away, and has sent all that it wanted to.
            self.on_complete(cycle)

    # What cycles ask.

    async def hot_task(
        self,
        cycle: HotCycle,
        service: Service,
        path: str,
        headers: RequestHeaders,
        body: bytes,
        key_state: KeyState | None,
    ) -> None:
        """The task of one hot call, in the place of `task_root`, which would be one coroutine more.

        Interpreted for the same reason (forwarders/beside.py).
        """
        try:
            await service.handle(path, headers, body, cycle, key_state)
        except asyncio.CancelledError:
            # The client left, or the server gave up waiting for us at shutdown.
            if not cycle.disconnected:
                cycle.abort()
                raise
        except BaseException:
            # A bug of ours must not leave the client waiting.
            cycle.abort()
            raise
        finally:
            cycle.task_ended()

    def check_framing(self, headers: Headers) -> None:
        """Raises BadRequest for a coding that we do not apply; needless with a Content-Length."""
        if not limits.is_framed_well(headers):
            raise BadRequest("the transfer encoding must be chunked, and that alone")

    def linger(self) -> None:
        """The request has been refused. The rest of its body is read and dropped, so that the client reads why."""
        self.stage = LINGERING
        self._deaf = True
        self._parked = None
        self._weigh()
        self._go_on()

    def on_complete(self, cycle: Cycle) -> None:
        """The answer is whole: the next request may come."""
        if cycle is not self._serving:
            return
        self._serving = None
        if not cycle.keep_alive:
            self._deaf = True
            self.transport.close()
            return
        if self._early:
            self._serving = early = self._early.pop(0)
            early.begin()
        # Also behind an early one: the rest of its body may be parked.
        if self._parked is not None or self._reading_paused:
            self._go_on()

    async def drain(self) -> None:
        """Returns when the client reads what is written, or has left."""
        if self.write_paused and self.parser is not None:
            if self._writable is None:
                self._writable = asyncio.Event()
            await self._writable.wait()

    def body_is_wanted(self) -> None:
        """The application has taken what there was."""
        if self._reading_paused:
            self._go_on()

    def pause_body(self) -> None:
        """There is more than the application has taken."""
        self._pause_reading()

    def note_for_tls(self, bytes_: int) -> None:
        """So many at once were read, or written: with TLS, buffers stay as large as that."""
        if bytes_ > self._longest_for_tls and self.tcp is not None:
            self._longest_for_tls = bytes_
            if isinstance(self._serving, AsgiCycle):
                # Its task, which is begun before this, finds out whether the caller is let in.
                self.loop.call_soon(self.crowd.weigh_stranger, self)
            else:
                self.crowd.weigh_stranger(self)

    # What the crowd asks.

    def take_turn(self) -> None:
        """A slice of what is parked; others have theirs before the next."""
        self._asked_for_turn = False
        parked = self._parked
        if parked is None or self._deaf or self._busy:
            return
        if peer_has_left(self.transport):
            # The client reads no answer to what it has sent, which may be megabytes.
            self.cut()
            return
        given = self._feed_slice(parked, b"")
        if given < len(parked) and not self._deaf:
            del parked[:given]
        else:
            self._parked = None
        self._weigh()
        self._go_on()

    @property
    def yields(self) -> bool:
        return self.stage == BODY or self.write_paused

    @property
    def is_waited_for(self) -> bool:
        return not (self._busy or self._reading_paused)

    @property
    def strange_bytes(self) -> int:
        """That its TLS takes, until somebody is let in."""
        if self.parser is None or not self._is_strangers:
            return 0
        return TLS_BYTES + TLS_BYTES_PER_BYTE * self._longest_for_tls

    def look(self, now: float) -> None:
        self._weigh()
        if self.tcp is not None:
            self.crowd.weigh_stranger(self)
        match self._clock.overdue(self, now):
            case Overdue.SILENT:
                self._deaf = True
                self.transport.close()
            case Overdue.SLOW:
                assert self.cycle is not None
                self.cycle.turn_away(ClientTooSlow("the body came too slowly"))
            case Overdue.UNREAD:
                self.cut()

    def cut(self) -> None:
        self._deaf = True
        self._parked = self.parser = None
        self.crowd.now_loose(self, 0)
        self._now_unread(0)
        # What waits in the loop before the connection is lost can take seconds where many are cut.
        self._forget_early()
        self._wake_writers()
        self.transport.abort()

    def yield_memory(self, error: GatewayError) -> None:
        serving = self._serving
        if self.stage == BODY and serving is not None and serving is self.cycle:
            serving.turn_away(error)
        else:
            self.cut()

    # How.

    @property
    def _busy(self) -> bool:
        """Whether what comes has to wait for an answer, or for the client to read one."""
        serving = self._serving
        return self.write_paused or (
            serving is not None and (serving is not self.cycle or self.stage < BODY)
        )

    def _end_trailers(self) -> None:
        count = len(self.headers)
        self.headers = []
        if count > MAX_HEADERS:
            raise _too_many()

    def _feed(self, piece: bytes | bytearray | memoryview, read: bytes) -> None:
        """`read` is what `piece` begins."""
        if self._deaf:
            if self.stage == LINGERING:
                self._drop(len(piece))
            return
        self._read = read
        self._head_bytes += len(piece)
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            if self.parser is None:
                # It was cut meanwhile.
                return
            cycle = self.cycle
            rest = piece[upgrade.args[0] :]
            if isinstance(cycle, SocketOpening) and cycle is self._serving:
                self._become_socket(cycle, len(rest))
                return
            if self._skipped:
                self._expect_skipped()
                self._feed(rest, b"")
                return
            if rest or not (isinstance(cycle, AsgiCycle) and cycle.declined):
                # What follows may be of another protocol, of which we speak none.
                self._is_the_last()
        except httptools.HttpParserError as error:
            self._refuse(_what_is_wrong(error))
        self._read = b""
        if self._head_bytes or self.headers or self.loose_bytes:
            self._check_head()

    def _new_parser(self) -> Any:
        parser = httptools.HttpRequestParser(self)
        # To read on behind a request that is the last one, and say nothing to what follows.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def _expect_skipped(self) -> None:
        """The parser takes what follows for the other protocol: a new one gets the body, behind a head of the same framing."""
        self.parser = self._new_parser()
        self.parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % self._skipped)
        self.requests -= 1
        self.headers = []
        self._skipped = b""
        self._deaf = False

    def _drop(self, bytes_: int) -> None:
        """Of a body that was refused. Where its length was not said the client has LINGER_SECONDS to leave."""
        cycle = self.cycle
        assert cycle is not None
        self.body_bytes += bytes_
        if 0 <= cycle.body_bytes_said <= self.body_bytes:
            self.on_complete(cycle)

    def _check_head(self) -> None:
        """Of a head, of trailers or of extensions that go on: what comes whole is checked at its end."""
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(_too_large())
        if len(self.headers) > MAX_HEADERS:
            self._refuse(_too_many())
        self._weigh()

    def _feed_slice(self, data: memoryview | bytearray, read: bytes, at: int = SLICE_BYTES) -> int:
        """So much, and the rest of a body of a known length. Returns how much of `data` that was."""
        self._feed(data[:at], read)
        if self.stage >= BODY and self.cycle is not None and at < len(data):
            rest = self.cycle.body_bytes_said - self.body_bytes
            if rest > 0:
                self._feed(data[at : at + rest], b"")
                at += rest
        return at

    def _park(self, data: bytes | memoryview) -> None:
        if self._deaf:
            return
        if self.stage < BODY and self._is_behind_declined():
            self._is_the_last()
            return
        if self._parked is None:
            self._parked = bytearray()
        self._parked += data
        if len(self._parked) > MAX_EARLY_BYTES:
            self._pause_reading()
        self._weigh()

    def _go_on(self) -> None:
        """With what is parked, and when there is none left with the socket."""
        lingers = self.stage == LINGERING
        if (self._deaf and not lingers) or self._busy:
            return
        if self._parked is not None:
            if not self._asked_for_turn:
                self._asked_for_turn = True
                self.crowd.turns.ask(self, self.loop)
        elif (
            self._reading_paused
            and not self.write_paused
            and (lingers or not (isinstance(self.cycle, AsgiCycle) and self.cycle.is_full))
        ):
            self._reading_paused = False
            self.transport.resume_reading()

    def _pause_reading(self) -> None:
        if not self._reading_paused and not self.transport.is_closing():
            self._reading_paused = True
            self.transport.pause_reading()
            self.note_for_tls(TLS_READ_BYTES)

    def _weigh(self) -> None:
        """Says what is held loosely, and of answers that are not read: nothing, nearly always."""
        if self.parser is None:
            return
        loose = 0
        if self.stage == HEAD:
            loose = self._head_bytes + HEADER_BYTES * len(self.headers)
        if self._parked is not None:
            loose += len(self._parked)
        if self._early:
            loose += EARLY_BYTES * len(self._early)
        # Also below the water at which writing is paused, as many may stay there.
        unread = self.transport.get_write_buffer_size()
        if self.tcp is not None:
            unread += self.tcp.get_write_buffer_size()
        if unread and self._is_strangers:
            loose, unread = loose + unread, 0
        if loose != self.loose_bytes:
            self.crowd.now_loose(self, loose)
        if unread != self._unread_bytes:
            self._now_unread(unread)

    @property
    def _is_strangers(self) -> bool:
        """Whether the last that was served was not let in. The key of a hot call is known before its body is read."""
        serving = self._serving
        if isinstance(serving, HotCycle) and self.stage != LINGERING:
            return False
        last = self.cycle if serving is None else serving
        return last is None or not last.let_in

    def _leave_crowd(self) -> None:
        self.crowd.leave(self)
        if self.tcp is not None:
            self.crowd.forget_stranger(self)

    def _now_unread(self, bytes_: int) -> None:
        more, self._unread_bytes = bytes_ - self._unread_bytes, bytes_
        if more > 0:
            self.crowd.hold(self, more)
        else:
            self.crowd.free(self, -more)

    def _forget_early(self) -> None:
        for cycle in self._early:
            cycle.client_left()
        self._early.clear()

    def _wake_writers(self) -> None:
        if self._writable is not None:
            self._writable.set()
            self._writable = None

    def _is_hot(self) -> bool:
        """Early and HTTP/1.0 requests are rare, and ASGI's."""
        line = self._first_lines.get(self.url)
        if line is None or self._serving is not None:
            return False
        if not self._begun_in.startswith(line):
            # To ask the parser costs more. A later read of the same head may begin with any line.
            parser = self.parser
            if parser.get_method() != b"POST" or parser.get_http_version() != "1.1":
                return False
        return not self.parser.should_upgrade()

    def _begin_asgi(self) -> None:
        if len(self._early) >= MAX_EARLY_REQUESTS or self._is_behind_declined():
            self._is_the_last()
            return
        parser = self.parser
        version = parser.get_http_version()
        if version not in ("1.0", "1.1"):
            raise BadRequest(f"HTTP/{version} is not spoken here")
        limits.check_host(self.headers)
        self.check_framing(self.headers)
        if self._serving is None and parser.should_upgrade():
            opening = opening_of(self, parser.get_method(), version)
            if opening is not None:
                self.cycle = self._serving = opening
                return
        self.cycle = cycle = AsgiCycle(
            self, parser.get_method(), old=version == "1.0", keep_alive=parser.should_keep_alive()
        )
        if self._serving is None:
            self._serving = cycle
            cycle.begin()
        else:
            self._early.append(cycle)
        if parser.should_upgrade() and parser.get_method() != b"CONNECT":
            cycle.declined = True
            self._skipped = limits.framing(self.headers) if cycle.body_bytes_said else b""
            # The parser says next that the request is whole, which it is not where a body is skipped.
            self._deaf = bool(self._skipped)
        if self._early:
            self._weigh()

    def _is_behind_declined(self) -> bool:
        """Whether what comes may be of the protocol that the last request asked for: the client has no answer yet."""
        cycle = self.cycle
        return self._serving is not None and isinstance(cycle, AsgiCycle) and cycle.declined

    def _become_socket(self, opening: SocketOpening, more_bytes: int) -> None:
        """The connection is another protocol's from now on. `more_bytes`: that came behind the request."""
        self._serving = None
        self._read = b""
        if more_bytes:
            self._refuse(BadRequest("frames came before the handshake was answered"))
            return
        self._deaf = True
        self.server_state.connections.discard(self)
        strange_bytes = self.strange_bytes if self.tcp is not None else 0
        self._leave_crowd()
        self._now_unread(0)
        if self._farewell is not None:
            self._farewell.cancel()
        self.parser = None
        if self._reading_paused:
            self.transport.resume_reading()
        opening.take_over(self, strange_bytes)

    def _is_the_last(self) -> None:
        self._deaf = True
        if self._serving is None:
            self.transport.close()
        else:
            self._last_one().keep_alive = False

    def _last_one(self) -> Cycle:
        """That will be answered, as it came whole; only where one is served."""
        assert self._serving is not None
        whole = [cycle for cycle in self._early if cycle.asked]
        self._early = whole
        return whole[-1] if whole else self._serving

    def _refuse(self, error: GatewayError) -> None:
        """What came is no request, and nothing that follows can be."""
        if self._deaf:
            return
        serving = self._serving
        if serving is not None and serving.asked and not serving.response_complete:
            # That request was good: it is answered, and nothing after it is.
            self._is_the_last()
            return
        self._deaf = True
        self.headers = []
        if serving is not None:
            serving.client_left()
        if serving is None or not serving.has_begun:
            status, headers, body = errors.as_response(error)
            self.transport.write(head_lines(status, headers, CLOSE) + body)
        self.transport.close()


def _too_large() -> HeadTooLarge:
    return HeadTooLarge(f"the head is larger than {MAX_HEAD_BYTES} bytes")


def _too_many() -> HeadTooLarge:
    return HeadTooLarge(f"there are more than {MAX_HEADERS} headers")


def _what_is_wrong(error: httptools.HttpParserError) -> GatewayError:
    if isinstance(error, httptools.HttpParserCallbackError):
        # A refusal of ours; or a bug, which is logged as one.
        return errors.known(error.__context__ or error)
    return BadRequest("Invalid HTTP request received.")
