"""One request to an engine and the answer to it.

The connection calls `on_head`, `on_body`, `on_end` (or `on_answer` for all three) and `fail`;
one task awaits a stage:

    ASKED --on_head--> HEAD --first piece--> BODY --on_end--> OVER
       \\_________________\\______________________\\__fail______/

Until there is a sink, pieces are kept, and beyond BUFFER_BYTES reading stops. The first
deadline runs to the first piece of the body, the second between pieces; neither runs
while we do not read.
"""

import asyncio
import sys
from typing import Final, Protocol

from pdgate.forwarders.base import Leg, Sink
from pdgate.gateway.deadlines import Deadlines
from pdgate.gateway.upstream.failures import naming
from pdgate.protocols.call import Headers
from pdgate.protocols.errors import EngineFailed, EngineTooSlow, GatewayError

BUFFER_BYTES: Final = 256 << 10
MAX_ERROR_BYTES: Final = 1 << 20

ASKED: Final = 0
HEAD: Final = 1
BODY: Final = 2
OVER: Final = 3


class Line(Protocol):
    """What an exchange needs of its connection."""

    def abort(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class Exchange:
    """The Answer contract, once its head is there.

    Attributes:
        status: 0 until the head is there.
        headers: Names in lower case.
        seconds, seen, due: For the deadlines.
    """

    status = 0
    headers: Headers = ()
    seconds = 0.0
    seen = False
    due = 0.0
    _room_bytes = BUFFER_BYTES
    _beyond_bytes = sys.maxsize
    _collect_bytes = 0
    _client_slow = False

    def __init__(
        self,
        leg: Leg,
        line: Line,
        deadlines: Deadlines,
        first_seconds: float | None,
        idle_seconds: float | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._leg = leg
        self._line: Line | None = line
        self._loop = loop
        self._first_seconds = first_seconds
        self._idle_seconds = idle_seconds
        self._deadlines = deadlines
        self._parts: list[bytes] = []
        # What is read before it is written is not left to the class, where it takes ten times as long.
        self._stage = ASKED
        self._goal = OVER
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._held_bytes = 0
        self._sink: Sink | None = None
        self._full = False
        deadlines.watch(self, first_seconds)

    # What the connection tells.

    def on_head(self, status: int, headers: Headers) -> None:
        self.status = status
        self.headers = headers
        self._stage = HEAD
        if self._goal == HEAD:
            self._wake()

    def on_body(self, piece: bytes, framed: bytes = b"") -> None:
        """`framed` is the piece as a chunk of HTTP, if it came as one."""
        if self._stage != BODY:
            self._stage = BODY
            self._watch()
        self.seen = True
        sink = self._sink
        if sink is None:
            self._keep(piece)
        else:
            sink.data(piece, framed)

    def on_last(self, piece: bytes) -> None:
        """on_end follows at once: no deadline is needed, and a sink gets it with the end."""
        self._stage = BODY
        self.seen = True
        if self._sink is None:
            self._keep(piece)
        else:
            self._parts.append(piece)

    def on_end(self) -> None:
        self._line = None
        self._close()

    def on_answer(self, status: int, headers: Headers, body: bytes) -> None:
        """All of these at once; most answers that are no stream come in one read."""
        self.status = status
        self.headers = headers
        self._parts.append(body)
        self._held_bytes = len(body)
        self._line = None
        self._close()

    def fail(self, error: Exception) -> None:
        """The answer ends here; the connection with it."""
        if self._stage == OVER:
            return
        self._error = error
        self._hang_up()

    def broken(self, what: str) -> None:
        engine = self._leg.to
        self.fail(EngineFailed(f"{naming(engine)} {what}", at=engine.id))

    # What the caller does.

    # A task that is cancelled while it waits here leaves nothing behind.

    async def head(self) -> None:
        """Waits for the status. Raises what `fail` was told."""
        if self._stage < HEAD:
            try:
                await self._until(HEAD)
            except asyncio.CancelledError:
                self.abandon()
                raise
        if self._error is not None:
            raise self._error

    async def whole(self, limit_bytes: int) -> bytes:
        """The body to its end; EngineFailed above the limit, but errors are cut short."""
        self._collect_bytes = limit_bytes
        if self._full:
            self._full = False
            self._overflow()
            self._update_reading()
        if self._stage < OVER:
            try:
                await self._until(OVER)
            except asyncio.CancelledError:
                self.abandon()
                raise
        if self._error is not None:
            raise self._error
        return self._take()

    async def ready(self, beyond: int = 0) -> bytes:
        """What is here, not taken, once it is more than `beyond` bytes, or all."""
        if self._held_bytes <= beyond and self._stage < OVER:
            self._room_bytes = max(self._room_bytes, beyond)
            self._beyond_bytes = beyond
            if self._full:
                self._full = False
                self._update_reading()
            try:
                await self._until(OVER)
            except asyncio.CancelledError:
                self.abandon()
                raise
            self._beyond_bytes = sys.maxsize
        if self._held_bytes <= beyond and self._error is not None:
            raise self._error
        return self._join()

    def start(self, sink: Sink) -> None:
        """First what is kept, in one piece, then each piece as it arrives."""
        self._sink = sink
        if self._stage == OVER:
            self._tell_end(sink)
            return
        if self._parts:
            sink.data(self._take(), b"")
        # The sink may have left.
        if self._sink is not None and self._full:
            self._full = False
            self._update_reading()

    def pause(self) -> None:
        self._client_slow = True
        self._update_reading()

    def resume(self) -> None:
        self._client_slow = False
        self._update_reading()

    def abandon(self) -> None:
        """Closes the connection at once, unless the answer is complete."""
        if self._stage != OVER:
            # Who leaves need not be told.
            self._sink = None
            self.fail(EngineFailed("the answer was abandoned", at=self._leg.to.id))

    # How.

    def _until(self, goal: int) -> asyncio.Future[None]:
        """Done at that stage, or earlier by `_wake`."""
        self._goal = goal
        self._waiter = waiter = self._loop.create_future()
        return waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _close(self) -> None:
        # Not called as a method, as which it would be looked up anew each time.
        forget = self._deadlines.forget
        forget(self)
        self._stage = OVER
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        if self._sink is not None:
            self._tell_end(self._sink)

    def _hang_up(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.abort()
        self._close()

    def _tell_end(self, sink: Sink) -> None:
        # What else can fail an exchange (a stale connection) does so before its head.
        assert self._error is None or isinstance(self._error, GatewayError)
        self._sink = None
        sink.ended(self._error, self._take())

    def _join(self) -> bytes:
        if len(self._parts) > 1:
            self._parts = [b"".join(self._parts)]
        return self._parts[0] if self._parts else b""

    def _take(self) -> bytes:
        parts = self._parts
        taken = parts[0] if len(parts) == 1 else b"".join(parts)
        self._parts = []
        self._held_bytes = 0
        return taken

    def _keep(self, piece: bytes) -> None:
        self._parts.append(piece)
        self._held_bytes += len(piece)
        if self._held_bytes > self._beyond_bytes:
            self._wake()
        if self._held_bytes > self._room_bytes:
            self._overflow()

    def _overflow(self) -> None:
        """More is kept than we like to."""
        if not self._collect_bytes:
            self._full = True
            self._update_reading()
        elif not 200 <= self.status < 300:
            if self._held_bytes > MAX_ERROR_BYTES:
                self._parts = [self._take()[:MAX_ERROR_BYTES]]
                self._hang_up()
        elif self._held_bytes > self._collect_bytes:
            self.broken("sent too large an answer")

    def _update_reading(self) -> None:
        if self._line is None:
            return
        if self._full or self._client_slow:
            self._deadlines.forget(self)
            self._line.pause()
        else:
            self._line.resume()
            self._watch()

    def _watch(self) -> None:
        """For the next piece, from now on."""
        body = self._stage == BODY
        self._deadlines.watch(self, self._idle_seconds if body else self._first_seconds)

    def expired(self) -> None:
        what = "fell silent" if self._stage == BODY else "took too long to answer"
        engine = self._leg.to
        self.fail(EngineTooSlow(f"{naming(engine)} {what}", at=engine.id))
