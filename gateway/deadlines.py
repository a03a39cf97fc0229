"""Time limits without a timer for each: one coarse wheel for all of them.

A deadline lies in the bucket of the tick at which it has to be looked at next. One
`loop.call_at` waits for the earliest bucket, and none does while nothing is armed.

    arm(60) --> bucket 150 --look--> touched? due = now + 60 --> bucket 300 ...
                                 \\-> not touched, and due has come: call back

What is alive writes `deadline.seen = True`, which costs one attribute write; the wheel
finds it at the next look. It looks four times in a span, so that silence is found
between 1 and 1.25 spans (plus a tick) after the last touch, and never before one span.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

LOOKS_PER_SPAN = 4
# Looks that lie further away share buckets this many ticks wide, so there are few.
COARSE_TICKS = 10
FAR_TICKS = 100


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long an engine may take; None is no limit.

    Attributes:
        connect_seconds: Until the connection (and TLS) stands.
        prefill_seconds: From sending to the first byte of the body, for prefill.
        first_byte_seconds: The same for everyone else. An answer that is not streamed
            has its first byte when it is complete, so this is long.
        idle_seconds: Between two pieces of a body.
    """

    connect_seconds: float | None = 5.0
    prefill_seconds: float | None = 300.0
    first_byte_seconds: float | None = 600.0
    idle_seconds: float | None = 120.0


def _nothing() -> None: ...


class Deadline:
    """One armed limit.

    Attributes:
        seen: Set it to True for "still alive"; the same as `touch()`, without a call.
    """

    __slots__ = ("bucket", "callback", "due", "seconds", "seen")

    def __init__(self, seconds: float, due: float, callback: Callable[[], None]) -> None:
        self.seen = False
        self.seconds = seconds
        self.due = due
        self.callback = callback
        self.bucket: set[Deadline] | None = None

    def touch(self) -> None:
        self.seen = True

    def cancel(self) -> None:
        """Any number of times, also after it has fired."""
        # The callback often is a method of whoever holds the deadline: no cycle stays.
        self.callback = _nothing
        if self.bucket is not None:
            self.bucket.discard(self)
            self.bucket = None


class Deadlines:
    """The wheel. Callbacks run in the event loop, `resolution_seconds` late at most."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, resolution_seconds: float = 0.1) -> None:
        self._loop = loop
        self._tick_seconds = resolution_seconds
        self._buckets: dict[int, set[Deadline]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next_tick = 0

    def arm(self, seconds: float | None, callback: Callable[[], None]) -> Deadline:
        """Calls back unless cancelled, or touched, within the span; never for None."""
        if seconds is None:
            return Deadline(0.0, 0.0, _nothing)
        now = self._loop.time()
        deadline = Deadline(seconds, now + seconds, callback)
        self._place(deadline, now)
        return deadline

    def close(self) -> None:
        """Forgets everything that is armed."""
        for bucket in self._buckets.values():
            for deadline in list(bucket):
                deadline.cancel()
        self._buckets.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def waiting(self) -> bool:
        """A timer of the event loop is running."""
        return self._timer is not None

    def _place(self, deadline: Deadline, now: float) -> None:
        look = min(deadline.due, now + deadline.seconds / LOOKS_PER_SPAN)
        tick = ceil(look / self._tick_seconds)
        if tick - now / self._tick_seconds > FAR_TICKS:
            tick += -tick % COARSE_TICKS
        bucket = self._buckets.get(tick)
        if bucket is None:
            bucket = self._buckets[tick] = set()
        bucket.add(deadline)
        deadline.bucket = bucket
        if self._timer is None or tick < self._next_tick:
            self._schedule(tick)

    def _schedule(self, tick: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next_tick = tick
        self._timer = self._loop.call_at(tick * self._tick_seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        # Event loops round to milliseconds and may call a little early.
        tick = int(now / self._tick_seconds + 0.05)
        try:
            for due in [each for each in self._buckets if each <= tick]:
                bucket = self._buckets[due]
                while bucket:
                    self._look_at(bucket.pop(), now)
                del self._buckets[due]
        finally:
            # Also when a callback failed: the others must not wait forever.
            self._buckets = {each: bucket for each, bucket in self._buckets.items() if bucket}
            if self._buckets:
                self._schedule(min(self._buckets))

    def _look_at(self, deadline: Deadline, now: float) -> None:
        deadline.bucket = None
        if deadline.seen:
            deadline.seen = False
            deadline.due = now + deadline.seconds
        elif now + self._tick_seconds / 10 >= deadline.due:
            deadline.callback()
            return
        self._place(deadline, now)
