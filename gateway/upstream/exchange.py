"""Exchange: one request to an engine, from its sending to the end of its answer.

    reply = await exchange.reply()          of prefill: the whole JSON answer
    async with exchange as answer: ...      of an answer that the client gets, while it comes

It is sent on a connection that is free, else on a new one; and once more on a new one if the
engine had closed that connection meanwhile. What must not be repeated is sent on a new one at once.

The connection calls `on_head`, `on_body`, `on_end` (or `on_answer` for all three) and `fail`;
one task awaits a stage:

    ASKED --on_head--> HEAD --first piece--> BODY --on_end--> OVER
       \\_________________\\______________________\\__fail______/

Until there is a sink, pieces are kept, and beyond BUFFER_BYTES reading stops. The first
deadline runs to the first piece of the body, the second between pieces; neither runs
while we do not read.

An answer for a client is whole if it is so by HTTP and by its API (protocols/endings.py): of a
stream only whole events pass, and an end that is none fails it. An event that ends like those
before it cannot be the last one, and is not read, unless others may have come with it.
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Final

from pdgate.forwarders.base import Answer, Leg, Sink
from pdgate.gateway.upstream.contracts import (
    Connections,
    ExchangeLine,
    Opener,
    StaleConnection,
)
from pdgate.gateway.upstream.failures import failure, naming
from pdgate.protocols.apis import Kind
from pdgate.protocols.call import Call, Headers, Raw, encode, parse_object
from pdgate.protocols.endings import ANY_BYTES, UNKNOWN, Ending, ending_of
from pdgate.protocols.errors import (
    BadRequest,
    EngineBusy,
    EngineFailed,
    EngineFrozen,
    EngineGaveUp,
    EngineRefused,
    EngineTooSlow,
    GatewayError,
    NoMemoryForAnswer,
)
from pdgate.protocols.instance import Instance
from pdgate.protocols.internal import hides, is_json, mentions_ours, without_ours
from pdgate.protocols.sse import WholeEvents

BUFFER_BYTES: Final = 256 << 10
MAX_ERROR_BYTES: Final = 1 << 20
UNFRAMED_BYTES: Final = 16 << 20
"""Of JSON whose end is the connection's: only a whole one can be distinguished from half of it."""
RETRY_AFTER_SECONDS: Final = 1
NO_ANSWERS: Final = frozenset((204, 205, 206))
"""Statuses that say that there is none, or a part of one."""

_JSON: Final = (b"content-type", b"application/json")

_ANYTHING: Final[tuple[bytes, ...]] = (b"",)

NEVER_BYTES: Final = sys.maxsize

ASKED: Final = 0
HEAD: Final = 1
BODY: Final = 2
OVER: Final = 3


class Exchange:
    """The Answer contract, once its head is there.

    Attributes:
        body: As it is sent.
        behind: The id of the engine that reads its prompt; empty for none but the leg's own.
        loads: That engine has read it.
        status: 0 until the head is there.
        headers: Names in lower case.
        line: What it was sent on, until all of the answer is here.
        seconds, seen, due: For the deadlines; the seconds are at first those until the first byte of the body.
        limited: It has such a limit.
    """

    # Instances share the keys of thirty attributes at most. One with more makes a dict of its own, in
    # which each event looks things up.
    __slots__ = (
        "_alone_bytes",
        "_beyond_bytes",
        "_client_slow",
        "_collect_bytes",
        "_counted_bytes",
        "_error",
        "_for_client",
        "_free",
        "_full",
        "_goal",
        "_half_bytes",
        "_held_bytes",
        "_idle_seconds",
        "_parts",
        "_room_bytes",
        "_sink",
        "_stage",
        "_stream",
        "_streams",
        "_unframed",
        "_upstream",
        "_usual",
        "_waiter",
        "_wanted_bytes",
        "behind",
        "body",
        "call",
        "due",
        "headers",
        "leg",
        "limited",
        "line",
        "loads",
        "seconds",
        "seen",
        "status",
    )

    def __init__(
        self,
        leg: Leg,
        call: Call,
        free: Connections | None,
        upstream: Opener,
        seconds: float | None = None,
        idle_seconds: float | None = None,
        behind: str = "",
        loads: bool = False,
        for_client: bool = False,
    ) -> None:
        """
        Args:
            free: Connections to the engine that it may be sent on, if there are any.
            upstream: What it shares with all others. As arguments these would be stored with each leg.
            seconds: Until the first byte of the body.
            idle_seconds: Between two of its pieces.
            for_client: Its answer is the client's, as it comes, and not one that is read here.
        """
        self.leg = leg
        self.call = call
        self.body = encode(leg.body) if leg.passed is None else leg.passed.body
        self.behind = behind
        self.loads = loads
        self._free = free
        self._upstream = upstream
        self.limited = seconds is not None
        self.seconds = 0.0 if seconds is None else seconds
        self._idle_seconds = idle_seconds
        self._for_client = for_client
        self.line: ExchangeLine | None = None
        self._parts: list[bytes] = []
        self.status = 0
        self.headers: Headers = ()
        self.seen = False
        self.due = 0.0
        self._stage = ASKED
        # Its head alone is waited for, or its end, which wakes every waiter.
        self._goal = OVER
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._held_bytes = self._counted_bytes = self._collect_bytes = self._half_bytes = 0
        self._room_bytes = self._wanted_bytes = BUFFER_BYTES
        self._beyond_bytes = NEVER_BYTES
        self._sink: Sink | None = None
        self._full = False
        self._client_slow = False
        self._unframed = False
        self._streams = False
        self._usual = _ANYTHING
        self._alone_bytes = ANY_BYTES
        # Made of the first piece.
        self._stream: Ending | None = None

    # What the caller does.

    # A task that is cancelled while it waits here leaves nothing behind.

    def reply(self) -> Coroutine[Any, Any, dict[str, Raw]]:
        """The whole JSON answer, its values still raw. Raises what the Upstream contract says."""
        self._collect_bytes = self._upstream.max_reply_bytes
        return self._sent_until(OVER)

    def _replied(self) -> dict[str, Raw]:
        engine = self.leg.to
        if self._error is not None:
            # What came of it is not taken any more.
            self._abandon()
            raise self._error
        body = self._take()
        if not 200 <= self.status < 300:
            raise failure(self.status, self.headers, body, engine)
        try:
            return parse_object(body)
        except BadRequest:
            if self.leg.read is not None:
                return self._read_otherwise(self.leg.read, body)
            message = f"{naming(engine)} answered with something that is not a JSON object"
            raise EngineFailed(message, at=engine.id) from None

    def _read_otherwise(
        self, read: Callable[[bytes], dict[str, Raw]], body: bytes
    ) -> dict[str, Raw]:
        engine = self.leg.to
        try:
            return read(body)
        except BadRequest as error:
            message = f"{naming(engine)} answered {self.leg.path} with something else: {error}"
            raise EngineFailed(message, at=engine.id) from None

    def __aenter__(self) -> Coroutine[Any, Any, Answer]:
        return self._sent_until(HEAD)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._abandon()

    async def _sent_until(self, goal: int) -> Any:
        """The answer that has begun, or what all of it says. One coroutine for all of it: each takes a thousand
        instructions of a leg."""
        free, self._goal = self._free, goal
        sent = free is not None and free.send(self)
        if sent and self._stage < goal:
            try:
                self._waiter = waiter = self._upstream.loop.create_future()
                await waiter
            except asyncio.CancelledError:
                self._abandon()
                raise
        if not sent or isinstance(self._error, StaleConnection):
            await self._sent_anew(again=sent)
        if goal == OVER:
            return self._replied()
        if not 200 <= self.status < 300:
            # What fails later may have said before how.
            if self._error is not None and not self.status:
                raise self._error
            error_body = await self._whole(self._upstream.max_reply_bytes)
            raise failure(self.status, self.headers, error_body, self.leg.to)
        if self.status in NO_ANSWERS:
            self._check_passes()
        return self

    def _check_passes(self) -> None:
        """Only what passes as it came may be no answer, or a part of one."""
        if self.call.api is None or self.call.api.kind is not Kind.PASSES:
            self._abandon()
            engine = self.leg.to
            raise EngineFailed(f"{naming(engine)} answered with {self.status}", at=engine.id)

    async def _sent_anew(self, *, again: bool) -> None:
        """On a new connection, and waits for the goal. Raises EngineRefused, EngineFailed.

        `again`: the free one was closed by the engine meanwhile.
        """
        try:
            if again:
                await self._again()
            else:
                await self._upstream.on_new(self)
            if self._stage < self._goal:
                self._waiter = waiter = self._upstream.loop.create_future()
                await waiter
        except asyncio.CancelledError:
            self._abandon()
            raise

    async def _again(self) -> None:
        """Once, on a new connection: other free ones may be as stale. Raises EngineFailed."""
        self._forget_failure()
        try:
            await self._upstream.on_new(self)
        except EngineRefused as error:
            engine = self.leg.to
            # "Refused" would promise that nothing was ever sent.
            raise _broke_off(engine) from error

    def _forget_failure(self) -> None:
        self._stage, self._error, self.due = ASKED, None, 0.0

    async def _woken(self) -> None:
        try:
            self._waiter = waiter = self._upstream.loop.create_future()
            await waiter
        except asyncio.CancelledError:
            self._abandon()
            raise

    async def _whole(self, limit_bytes: int) -> bytes:
        """The body to its end; EngineFailed above the limit, but errors are cut short."""
        self._collect_bytes = limit_bytes
        if self._full:
            self._make_room()
        if self._stage < OVER:
            await self._woken()
        if self._error is not None:
            # What came of it is not taken any more.
            self._abandon()
            raise self._error
        return self._take()

    async def ready(self, beyond: int = 0) -> bytes:
        """What is here, not taken, once it is more than `beyond` bytes, or all."""
        if self._unframed:
            beyond = UNFRAMED_BYTES
        if self._held_bytes <= beyond and self._stage < OVER:
            self._wanted_bytes = max(self._wanted_bytes, beyond)
            self._beyond_bytes = beyond
            if self._full:
                self._make_room()
            if self._stage < OVER:
                await self._woken()
            self._beyond_bytes = NEVER_BYTES
        if self._held_bytes <= beyond and self._error is not None:
            raise self._error
        parts = self._parts
        return parts[0] if len(parts) == 1 else self._join()

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

    def _abandon(self) -> None:
        """Closes the connection at once, unless the answer is complete."""
        if self._stage != OVER:
            # A caller that leaves needs no error.
            self._sink = None
            self.fail(EngineFailed("the answer was abandoned", at=self.leg.to.id))
        if self._counted_bytes:
            self._give_back()

    # What the connection tells.

    def on_head(self, status: int, headers: Headers) -> None:
        self.status = status
        self.headers = headers
        if self._for_client:
            self._expect()
        self._stage = HEAD
        waiter = self._waiter
        if self._goal == HEAD and waiter is not None and not waiter.done():
            waiter.set_result(None)

    def on_body(self, piece: bytes, size: int, framed: bytes = b"") -> None:
        """`framed` is the piece as a chunk of HTTP, if it came as one; `size` is that of what came."""
        if self._stage != BODY:
            self._stage = BODY
            idle = self._idle_seconds
            if idle is not None and self.limited:
                # It is watched already.
                self.seconds, self.due = idle, 0.0
            else:
                self._watch()
        self.seen = True
        if not piece.endswith(self._usual) or (
            # What is longer is looked through, which costs a fifth of an event.
            size > self._alone_bytes and piece.find(b"\n") != len(piece) - 2
        ):
            stream = self._stream
            if (
                stream is None
                or stream.unless is None
                or not piece.endswith(stream.usual_unless)
                or stream.unless(piece) is not None
                or stream.half is not None
            ):
                read = self._read(piece)
                if not read:
                    return
                if read is not piece:
                    piece, framed = read, b""
        sink = self._sink
        if sink is not None:
            sink.data(piece, framed)
            return
        self._parts.append(piece)
        self._held_bytes += len(piece)
        if self._held_bytes > self._beyond_bytes:
            waiter = self._waiter
            if waiter is not None and not waiter.done():
                waiter.set_result(None)
        if self._held_bytes > self._room_bytes:
            self._overflow()

    def on_last(self, piece: bytes) -> None:
        """on_end follows at once: no deadline is needed, and a sink gets it with the end."""
        self._stage = BODY
        self.seen = True
        if self._streams:
            piece = self._read(piece)
            if self._is_over():
                return
        self._parts.append(piece)
        if self._sink is None:
            self._held_bytes += len(piece)
            if self._held_bytes > self._room_bytes:
                self._overflow()

    def on_end(self) -> None:
        if self._stage == OVER:
            return
        self.line = None
        if self._for_client:
            self._check_end()
        self._close()

    def on_answer(self, status: int, headers: Headers, body: bytes) -> None:
        """All of these at once; most answers that are no stream come in one read."""
        self.status = status
        self.headers = headers
        if not self._for_client or (
            not self.call.streams and _JSON in headers and body.startswith(b"{")
        ):
            # Of nearly all is known at once that they are no stream, and HTTP has said where they end.
            self._parts.append(body)
            self._held_bytes = len(body)
            if self._for_client and mentions_ours(body):
                self._clear(body)
            self.line = None
            self._close()
            return
        self._expect()
        if self._streams:
            body = self._read(body)
        self._parts.append(body)
        self._held_bytes += len(body)
        self.on_end()

    def fail(self, error: Exception) -> None:
        """The answer ends here; the connection with it."""
        if self._stage == OVER:
            return
        # What has been said to its end is not spoilt by what happens to the connection.
        if self._stream is None or not self._stream.over:
            self._error = error
        self._hang_up()

    def broken(self, what: str) -> None:
        engine = self.leg.to
        self.fail(EngineFailed(f"{naming(engine)} {what}", at=engine.id))

    def broke_off(self) -> None:
        self.fail(_broke_off(self.leg.to))

    # What a look at all legs asks (gateway/liveness).

    @property
    def at(self) -> Instance:
        """The engine that it waits for."""
        return self.leg.to

    @property
    def streams(self) -> bool:
        return self.call.streams

    @property
    def prompt_tokens(self) -> int:
        return self.call.prompt_tokens

    @property
    def has_begun(self) -> bool:
        """A piece of the body is here."""
        return self._stage == BODY

    def silent_since(self, now: float) -> float:
        """When the engine said something of it last, or got it, on the loop's clock."""
        return now if self.seen or not self.due else self.due - self.seconds

    def given_up(self, at: str, why: str, *, waited: bool) -> None:
        """The engine `at` does nothing any more: its own, or the one it is behind.

        `waited`: that took all the time that a call may wait for a frozen engine.
        """
        self.fail(EngineFrozen(why, at=at) if waited else EngineTooSlow(why, at=at))

    # How.

    def _expect(self) -> None:
        """The head of a client's answer is there: what is to come, and what shows that it has."""
        said = dict(self.headers)
        call = self.call
        kind = said.get(b"content-type", b"").lower()
        is_stream = kind.startswith(b"text/event-stream")
        generates = call.api is None or call.api.kind is Kind.GENERATES
        if generates and is_stream:
            # Most of what comes here, whatever else its head says.
            self._streams = True
            self._usual = UNKNOWN
            return
        good = 200 <= self.status < 300
        framed = b"content-length" in said or b"transfer-encoding" in said
        reads = good and call.api is not None and call.api.kind in (Kind.READS, Kind.COUNTS)
        if not generates and said.get(b"content-encoding", b"identity") != b"identity":
            # It is no JSON, and so not seen to be whole.
            self._unframed = reads and not framed
        elif is_stream or (
            # Whatever it is called: what does not end as a stream does is none, and what is encoded,
            # which no engine is asked for, cannot be seen to end.
            call.streams and good and generates
        ):
            self._streams = True
            self._usual = UNKNOWN
        elif not framed and (reads or kind.find(b"json") >= 0):
            self._unframed = True
            self._collect_bytes = UNFRAMED_BYTES

    def _read(self, piece: bytes) -> bytes:
        """What of a stream can go on with this piece; the end may be none."""
        stream = self._stream
        if stream is None:
            stream = self._stream = ending_of(self.call)
        hears = self.leg.hears
        if hears is not None:
            hears(piece)
        out = stream.feed(piece)
        if stream.gave_up or stream.error:
            if self._sink is None:
                # The reader of the first event reads what is wrong.
                out += stream.error
            self._parts.append(out)
            self._held_bytes += len(out)
            self.fail(self._no_end(stream))
            return b""
        half = stream.half
        if half is not None:
            self._usual = UNKNOWN
            if half.size > BUFFER_BYTES and not self._has_room_for(half):
                # What came whole before it is the client's.
                self._parts.append(out)
                self._held_bytes += len(out)
                self.fail(_no_memory())
                return b""
        else:
            self._usual = stream.usual
            self._alone_bytes = stream.alone_bytes
            if self._half_bytes:
                self._give_back_half()
        return out

    def _has_room_for(self, half: WholeEvents) -> bool:
        """Of half an event beyond the first BUFFER_BYTES."""
        more = half.size + BUFFER_BYTES - self._half_bytes
        memory = self._upstream.memory
        if memory is None or half.size <= self._half_bytes:
            return True
        if not memory.take(more):
            return False
        self._half_bytes += more
        return True

    def _give_back_half(self) -> None:
        memory = self._upstream.memory
        assert memory is not None
        memory.give_back(self._half_bytes)
        self._half_bytes = 0

    def _check_end(self) -> None:
        """HTTP says that this is all; is it?"""
        if self._streams:
            stream = self._stream
            if stream is None:
                stream = ending_of(self.call)
            # Mostly all that came was whole.
            rest = b"" if stream.half is None else stream.last()
            if rest:
                self._parts.append(rest)
                self._held_bytes += len(rest)
            if rest is None or stream.gave_up or not stream.whole:
                self._error = self._no_end(stream)
            return
        body = self._join()
        if self._unframed and not is_json(body):
            self._error = self._no_end(None)
        elif self._sink is None and mentions_ours(body):
            self._clear(body)

    def _no_end(self, stream: Ending | None) -> GatewayError:
        engine = self.leg.to
        name = naming(engine)
        if stream is not None and stream.let_go:
            return EngineBusy(f"{name} had no room to finish the call", at=engine.id)
        if stream is not None and stream.crowded:
            return EngineFailed(f"{name} sent more at once than is read", at=engine.id)
        if stream is not None and stream.gave_up:
            return EngineGaveUp(f"{name} gave the call up", at=engine.id)
        if stream is not None and stream.error:
            return EngineFailed(f"{name} failed while it answered", at=engine.id)
        return EngineFailed(f"{name} ended its answer too early", at=engine.id)

    def _clear(self, body: bytes) -> None:
        """Takes out of a whole answer what is not for clients."""
        call = self.call
        hears = self.leg.hears
        if hears is not None:
            hears(body)
        if call.api is not None and call.api.kind is not Kind.GENERATES:
            return
        cleared = without_ours(body)
        if cleared is body or not hides(call.body):
            return
        self._parts = [cleared]
        self._held_bytes = len(cleared)
        self.headers = [
            (name, b"%d" % len(cleared) if name == b"content-length" else found)
            for name, found in self.headers
        ]

    def _is_over(self) -> bool:
        return self._stage == OVER

    def _close(self) -> None:
        # Not called as a method, as which it would be looked up anew each time.
        forget = self._upstream.deadlines.forget
        forget(self)
        self._stage = OVER
        if self._half_bytes:
            self._give_back_half()
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        if self._sink is not None:
            self._tell_end(self._sink)

    def _hang_up(self) -> None:
        line, self.line = self.line, None
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
        if self._counted_bytes:
            self._give_back()
        return taken

    def _overflow(self) -> None:
        """More is kept than there was room for."""
        if self._collect_bytes and not 200 <= self.status < 300:
            if self._held_bytes > MAX_ERROR_BYTES:
                self._parts = [self._take()[:MAX_ERROR_BYTES]]
                self._hang_up()
        elif self._held_bytes <= (self._collect_bytes or self._wanted_bytes):
            self._take_room()
        elif self._collect_bytes:
            self.broken("sent too large an answer")
        else:
            self._full = True
            self._update_reading()

    def _make_room(self) -> None:
        """For what is wanted now, and reads on if there is; it was full."""
        self._full = False
        self._overflow()
        self._update_reading()

    def _take_room(self) -> None:
        """For a little more than there is; or the answer is too much for this process now."""
        room = self._held_bytes + BUFFER_BYTES
        memory = self._upstream.memory
        if memory is not None:
            if not memory.take(room - self._counted_bytes):
                self.fail(_no_memory())
                return
            self._counted_bytes = room
        self._room_bytes = room

    def _give_back(self) -> None:
        memory = self._upstream.memory
        assert memory is not None
        memory.give_back(self._counted_bytes)
        self._counted_bytes = 0

    def _update_reading(self) -> None:
        if self.line is None:
            return
        if self._full or self._client_slow:
            self._upstream.deadlines.forget(self)
            self.line.pause()
        else:
            self.line.resume()
            self._watch()

    def _watch(self) -> None:
        """For the next piece, from now on."""
        if self._stage == BODY:
            self._upstream.deadlines.watch(self, self._idle_seconds)
        elif self.limited:
            self._upstream.deadlines.watch(self, self.seconds)

    def expired(self) -> None:
        what = "fell silent" if self._stage == BODY else "took too long to answer"
        engine = self.leg.to
        self.fail(EngineTooSlow(f"{naming(engine)} {what}", at=engine.id))


def _broke_off(engine: Instance) -> EngineFailed:
    return EngineFailed(f"{naming(engine)} broke off", at=engine.id, broke_off=True)


def _no_memory() -> NoMemoryForAnswer:
    return NoMemoryForAnswer(
        "the gateway holds as many bodies and answers as it has memory for",
        retry_after_seconds=RETRY_AFTER_SECONDS,
    )
