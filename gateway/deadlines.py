"""Time limits without a timer for each: one coarse clock looks at all of them.

    watch(it, 60) --first look--> due = now + 60 --look--> seen? due = now + 60
                                                   \\-----> due has come: expired()

What is alive writes `seen = True` on itself, which costs one attribute write. Everything else
happens at the looks, TICK_SECONDS apart, so silence is found at most two ticks late, and never
early. Looking at a thousand takes less than 0.1 ms; no timer runs while nothing is watched.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

TICK_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long an engine may take; None is no limit. What a gateway gives by default is
    declared with its settings (config/sections.py).

    Attributes:
        connect_seconds: Until the connection (and TLS) stands.
        prefill_seconds: From sending to the first byte of the body, for prefill.
        first_byte_seconds: The same for everyone else. An answer that is not streamed
            has its first byte when it is complete, so this is long.
        kv_wait_seconds: The same for decode whose prompt prefill has read: the time in which
            the KV has to arrive.
        idle_seconds: Between two pieces of a body.
        total_seconds: The whole call, its time in a queue and all its attempts included.
    """

    connect_seconds: float | None = None
    prefill_seconds: float | None = None
    first_byte_seconds: float | None = None
    kv_wait_seconds: float | None = None
    idle_seconds: float | None = None
    total_seconds: float | None = None


class Watched(Protocol):
    """What has a limit.

    Attributes:
        seconds: The span.
        seen: Written True for "still alive".
        due: 0 for "from the next look on".
    """

    seconds: float
    seen: bool
    due: float

    def expired(self) -> None:
        """Called once; it is watched no more."""


class Deadlines:
    """All limits of an event loop.

    Attributes:
        add: Takes one whose `seconds` and `due` are set, as `watch` does; then `timer` must not be None.
        forget: Takes one that need not be watched any more, or never was.
        timer: Runs while any is watched.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, tick_seconds: float = TICK_SECONDS):
        self._loop = loop
        self._tick_seconds = tick_seconds
        self._watched: set[Watched] = set()
        self.timer: asyncio.TimerHandle | None = None
        # What is done for every call is no function of Python.
        self.add: Callable[[Watched], None] = self._watched.add
        self.forget: Callable[[Watched], None] = self._watched.discard

    def watch(self, it: Watched, seconds: float | None) -> None:
        """Watch it from now on with this span, whatever was said before; None is no limit."""
        if seconds is None:
            self._watched.discard(it)
            return
        it.seconds, it.due = seconds, 0.0
        self._watched.add(it)
        if self.timer is None:
            self.wind()

    def close(self) -> None:
        """Forgets everything."""
        self._watched.clear()
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    @property
    def watched(self) -> tuple[Watched, ...]:
        """All that has a limit now."""
        return tuple(self._watched)

    def wind(self) -> None:
        self.timer = self._loop.call_at(self._loop.time() + self._tick_seconds, self._look)

    def _look(self) -> None:
        self.timer = None
        now = self._loop.time()
        try:
            # A copy, and a second question below, as those that expire may forget others.
            for it in tuple(self._watched):
                if it.seen or not it.due:
                    it.seen = False
                    it.due = now + it.seconds
                elif it.due <= now and it in self._watched:
                    self._watched.remove(it)
                    it.expired()
        finally:
            # Also when one of them failed: the others must not wait forever.
            if self._watched:
                self.wind()
