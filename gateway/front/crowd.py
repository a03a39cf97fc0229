"""Client connections of a process: how long each takes, and how much memory all hold together.

    loose     of heads on their way, of requests that came early, and of unread answers to callers that
              were not let in: what a client without a key can make the process hold.
              Beyond LOOSE_BYTES the connection that holds the most is cut.
    strange   of TLS, until somebody is let in on the connection: 50 KB for nothing said, and what its longest read
              took stays as long as it does. Beyond STRANGE_BYTES the largest is cut, the oldest of those.
    held      of bodies, from their first byte to the end of their call; of answers that are held until
              they are whole; of answers that callers that were let in do not read. Beyond `limit_bytes`
              (--max-memory) new bodies and longer answers are refused; if what was let in grows
              beyond it, the largest that is not whole yet, or not read, gives way.

Of handshakes MOST_HANDSHAKES are under way. Each takes up to 130 KB, and one that brings 400 at once as many until the next
turn of the loop, when it has failed. Others wait and take 4 KB; a loop accepts hundreds in one turn. While some wait, the oldest that
is under way gives way when its patience is over, which is PATIENCE_SECONDS where few wait, and none where MOST_WAITING do: a client
that is honest waits 8 s for its turn at most, whatever comes besides, and has some time then.

All are checked here and nowhere else. Once a second each connection is asked to look at its own
clock, so that no request needs a timer: limits are met a second or two late, and never early.
At each look a connection is in some stage of some request. When it was seen there first is noted;
what is there still when the stage's limit has passed is overdue. The limits are those of `limits.py`.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from enum import Enum, auto
from itertools import islice
from typing import Final, Protocol

from pdgate.gateway.front import limits
from pdgate.gateway.turns import ParseTurns
from pdgate.protocols.errors import GatewayError, OutOfMemory

LOOSE_BYTES: Final = 8 << 20
STRANGE_BYTES: Final = 32 << 20
MOST_HANDSHAKES: Final = 128
MOST_WAITING: Final = 2048
PATIENCE_SECONDS: Final = 2.0
IMPATIENT_SECONDS: Final = 0.05
"""Between two looks at those that are under way, while others wait."""

LOOK_SECONDS: Final = 1.0
LOOKS_PER_TURN: Final = 1000
"""Of the event loop; so many looks take about 1 ms."""

RETRY_AFTER_SECONDS: Final = 1


class CrowdMember(Protocol):
    """One connection.

    Attributes:
        loose_bytes, held_bytes: Its part of the sums; answers that are not whole are no connection's.
        yields: What it holds can be had back by `yield_memory`, without a whole call being lost.
    """

    loose_bytes: int
    held_bytes: int

    @property
    def yields(self) -> bool: ...

    def look(self, now: float) -> None:
        """Ends what has taken too long. `now` is the loop's time."""

    def cut(self) -> None:
        """Hangs up; it holds nothing loose afterwards."""

    def yield_memory(self, error: GatewayError) -> None:
        """Refuses what is on its way in, or hangs up."""


class Stranger(Protocol):
    """A connection over TLS, or the handshake of one."""

    def cut(self) -> None: ...


class TlsHandshake(Stranger, Protocol):
    """Of a connection that was accepted."""

    def begin(self) -> bool:
        """False where it is over already."""


class TlsStranger(Stranger, Protocol):
    """One whose handshake is over.

    Attributes:
        strange_bytes: What its TLS takes; 0 once somebody was let in.
    """

    @property
    def strange_bytes(self) -> int: ...


class Crowd:
    """
    Attributes:
        limit_bytes: Of what is held.
        loose_bytes, strange_bytes, held_bytes: The sums.
        refused: Bodies and answers for which there was no memory.
        cut: Connections that were cut for what they held loosely.
        turns: Of those that have more to be parsed than one turn of the loop has time for.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.loose_bytes = 0
        self.strange_bytes = 0
        self.held_bytes = 0
        self.refused = 0
        self.cut = 0
        self.turns = ParseTurns()
        self._members: set[CrowdMember] = set()
        # Those that came first are first. Under way, with the look at which they began, and those that wait. A busy
        # loop looks less often: what it has not read yet is no client's delay.
        self._handshakes: dict[TlsHandshake, int] = {}
        self._looks = 0
        self._waiting: OrderedDict[TlsHandshake, None] = OrderedDict()
        self._impatient: asyncio.Handle | None = None
        self._strangers: dict[TlsStranger, int] = {}
        self._timer: asyncio.Handle | None = None

    def join(self, member: CrowdMember, loop: asyncio.AbstractEventLoop) -> None:
        self._members.add(member)
        if self._timer is None:
            self._timer = loop.call_later(LOOK_SECONDS, self._begin_looks, loop)

    def leave(self, member: CrowdMember) -> None:
        self._members.discard(member)
        self.now_loose(member, 0)

    def greet(self, handshake: TlsHandshake, loop: asyncio.AbstractEventLoop) -> None:
        """It was accepted: it begins, or waits."""
        self._waiting[handshake] = None
        self._begin_some(loop)

    def greeted(self, handshake: TlsHandshake, loop: asyncio.AbstractEventLoop) -> None:
        """It is over, well or not."""
        self._waiting.pop(handshake, None)
        if self._handshakes.pop(handshake, None) is not None:
            self._begin_some(loop)

    def _begin_some(self, loop: asyncio.AbstractEventLoop) -> None:
        """Of those that wait, as many as others are over for, or have had their time."""
        while self._waiting:
            if len(self._handshakes) >= MOST_HANDSHAKES:
                oldest, began_at = next(iter(self._handshakes.items()))
                had = (self._looks - began_at) * IMPATIENT_SECONDS
                if had < PATIENCE_SECONDS * (1 - len(self._waiting) / MOST_WAITING):
                    break
                del self._handshakes[oldest]
                self.cut += 1
                oldest.cut()
            first, _ = self._waiting.popitem(last=False)
            if first.begin():
                self._handshakes[first] = self._looks
        if self._waiting and self._impatient is None:
            self._impatient = loop.call_later(IMPATIENT_SECONDS, self._look_impatiently, loop)

    def _look_impatiently(self, loop: asyncio.AbstractEventLoop) -> None:
        self._impatient = None
        self._looks += 1
        self._begin_some(loop)

    def weigh_stranger(self, one: TlsStranger) -> None:
        self._now_strange(one, one.strange_bytes)
        while self.strange_bytes > STRANGE_BYTES:
            worst = max(self._strangers, key=self._strangers.__getitem__)
            left = worst.strange_bytes
            if left == self._strangers[worst]:
                left = 0
                self.cut += 1
                worst.cut()
            self._now_strange(worst, left)

    def forget_stranger(self, one: TlsStranger) -> None:
        self._now_strange(one, 0)

    def _now_strange(self, one: TlsStranger, bytes_: int) -> None:
        self.strange_bytes += bytes_ - self._strangers.get(one, 0)
        if bytes_:
            self._strangers[one] = bytes_
        else:
            self._strangers.pop(one, None)

    def now_loose(self, member: CrowdMember, loose_bytes: int) -> None:
        """That is what the member holds loosely now, whatever it was."""
        self.loose_bytes += loose_bytes - member.loose_bytes
        member.loose_bytes = loose_bytes
        while self.loose_bytes > LOOSE_BYTES:
            worst = max(self._members, key=lambda one: one.loose_bytes)
            self.cut += 1
            worst.cut()

    def hold(self, member: CrowdMember, more_bytes: int) -> None:
        self.held_bytes += more_bytes
        member.held_bytes += more_bytes
        if self.held_bytes > self.limit_bytes:
            self._relieve()

    def free(self, member: CrowdMember, bytes_: int) -> None:
        self.held_bytes -= bytes_
        member.held_bytes -= bytes_

    def take(self, more_bytes: int) -> bool:
        """Whether so much more of an answer can be held; if so, it is."""
        if self.held_bytes + more_bytes > self.limit_bytes:
            self.refused += 1
            return False
        self.held_bytes += more_bytes
        return True

    def give_back(self, bytes_: int) -> None:
        """Of what was taken."""
        self.held_bytes -= bytes_

    def check_room(self, body_bytes: int) -> None:
        """Raises OutOfMemory if a body of that size cannot be held now."""
        if self.held_bytes + body_bytes > self.limit_bytes:
            self.refused += 1
            raise self._refusal()

    def _relieve(self) -> None:
        # What is cut is given back a little later, when its call has ended.
        over = self.held_bytes - self.limit_bytes
        yielding = [one for one in self._members if one.yields and one.held_bytes]
        for worst in sorted(yielding, key=lambda one: one.held_bytes, reverse=True):
            over -= worst.held_bytes
            self.refused += 1
            worst.yield_memory(self._refusal())
            if over <= 0:
                return

    def _refusal(self) -> OutOfMemory:
        return OutOfMemory(
            "the gateway holds as many bodies as it has memory for",
            retry_after_seconds=RETRY_AFTER_SECONDS,
        )

    def _begin_looks(self, loop: asyncio.AbstractEventLoop) -> None:
        self._look(loop, iter(tuple(self._members)))

    def _look(self, loop: asyncio.AbstractEventLoop, left: "Iterable[CrowdMember]") -> None:
        now, looked = loop.time(), 0
        try:
            for member in islice(left, LOOKS_PER_TURN):
                looked += 1
                if member in self._members:
                    member.look(now)
        finally:
            # Also when one look failed: the others must not go on for ever.
            if looked == LOOKS_PER_TURN:
                self._timer = loop.call_soon(self._look, loop, left)
            elif self._members:
                self._timer = loop.call_later(LOOK_SECONDS, self._begin_looks, loop)
            else:
                self._timer = None


WAITING: Final = 0
HEAD: Final = 1
BODY: Final = 2
LINGERING: Final = 3
"""Stages of reading a request: before it, in its head, in its body, in a body that was refused."""


class Overdue(Enum):
    """What is too late: NOTHING, the client's next bytes, its body, or its reading."""

    NOTHING = auto()
    SILENT = auto()
    SLOW = auto()
    UNREAD = auto()


class Timed(Protocol):
    """A connection.

    Attributes:
        requests: That have begun.
        body_bytes: Of the body that is on its way, so far.
        keep_alive_seconds: That it may be silent between two requests.
        is_waited_for: It is the client's turn: to send, as far as we read.
    """

    transport: asyncio.Transport
    stage: int
    requests: int
    body_bytes: int
    keep_alive_seconds: float
    write_paused: bool

    @property
    def is_waited_for(self) -> bool: ...


class Clock:
    """Of one connection."""

    __slots__ = ("_at", "_since", "_unread_bytes")

    def __init__(self) -> None:
        # Request and stage that were seen last; None where the client was not waited for.
        self._at: tuple[int, int] | None = None
        self._since = 0.0
        self._unread_bytes = 0

    def overdue(self, one: Timed, now: float) -> Overdue:
        if one.write_paused or one.transport.is_closing():
            return self._unread(one.transport.get_write_buffer_size(), now)
        self._unread_bytes = 0
        if not one.is_waited_for:
            self._at = None
            return Overdue.NOTHING
        at = one.requests, one.stage
        if at != self._at:
            self._at, self._since = at, now
            return Overdue.NOTHING
        waited = now - self._since
        if one.stage == BODY:
            due = (waited - limits.BODY_GRACE_SECONDS) * limits.BODY_BYTES_PER_SECOND
            slow = waited >= limits.BODY_SECONDS or one.body_bytes < due
            return Overdue.SLOW if slow else Overdue.NOTHING
        return Overdue.SILENT if waited >= _silence(one) else Overdue.NOTHING

    def _unread(self, left: int, now: float) -> Overdue:
        """`left` waits to be written; it is less than before where the client has read."""
        self._at = None
        if left != self._unread_bytes:
            self._unread_bytes, self._since = left, now
        elif left and now - self._since >= limits.UNREAD_SECONDS:
            return Overdue.UNREAD
        return Overdue.NOTHING


def _silence(one: Timed) -> float:
    if one.stage == LINGERING:
        return limits.LINGER_SECONDS
    return one.keep_alive_seconds if one.stage == WAITING and one.requests else limits.HEAD_SECONDS
