"""Watchdog of the event loop: finds callbacks that use more CPU time than they may, and names them.

    loop's thread    callback | callback | c a l l b a c k ............... | callback
    watchdog               sample      sample      sample      sample
                             |__ mark the loop's queue ___________________|  the mark's turn

A thread samples the CPU clock of the loop's thread, and while that is busy also its stack. It puts a mark
into the loop's queue: until the mark has had its turn, a frame that stays at the bottom of the stack is one
and the same callback. A callback that never lets go of the interpreter (a decoder in C, compiled
code) is seen by how long the watchdog itself waited for it, less the time that it waited for a core. It must then have
waited in whole switch intervals, neither in shorter ones: callbacks that let go in between for a system call have the
interpreter back before a thread that waits for it has woken up, and kept it out for 0.1 s together; nor in fewer: the
host of a virtual machine may stop the watchdog's core, whose clock then wakes it late, while the loop runs on at
another. Both may happen in one look and add up to whole intervals, so the mark also goes round with the loop while the
watchdog is late, and one turn of the loop must have used so much. So none is found that did not use so much; one of
twice the time nearly always is, one that is little above it may not be.

A loop that is idle costs 20 samples a second of 10 us; a call costs nothing. Where there is no CPU clock of another
thread (macOS), nothing is watched.
"""

import asyncio
import gc
import logging
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from types import FrameType
from typing import Final

log = logging.getLogger(__name__)

LIMIT_SECONDS: Final = 0.05
"""Of CPU time for one callback (docs/operations/security.md#time)."""
BUSY_SECONDS: Final = 0.02
IDLE_SECONDS: Final = 0.05
"""Between two samples."""
LEAST_SECONDS: Final = 0.002
"""Of CPU time between two samples, without which no callback can become one that is looked for."""
WAITS_OF_ITS_OWN: Final = 2
"""From one sample to the next: for the time, and once for a lock."""
LEAST_SHARE: Final = 0.8
"""Of the time that it was kept out, which it has waited for the interpreter: usual is 0.93 and more."""
MOST_TURNS: Final = 1000
"""Of a mark: where the loop is idle and the watchdog's core stands still, it would go round for nothing."""
MOST_PLACES: Final = 32
"""That have a label of their own."""
OTHER: Final = "other"
ELSEWHERE: Final = "elsewhere"
"""Where no function of ours is on the stack."""
QUIET_SECONDS: Final = 60.0
"""Between two lines in the log about one place."""

_LOOPS: Final = ("asyncio/runners.py", "asyncio/base_events.py")


@dataclass(slots=True)
class _Mark:
    """
    Attributes:
        loop: In whose queue the mark is.
        due: When the watchdog looks next, by time.monotonic(); from then on the mark goes round with the loop.
        bottom: Of the stack, above the loop's own frames; None for no frame of Python's.
        cpu: Of the loop's thread, in seconds, at a time when the mark was in the queue.
        passed: The mark has had its turn, so the callback that ran has ended.
        seen: The watchdog has looked at it after its turn, and it goes round no more.
        longest: CPU seconds of the loop's thread between two turns of the mark.
    """

    loop: asyncio.AbstractEventLoop
    due: float
    bottom: FrameType | None = None
    cpu: float = inf
    passed: bool = False
    told: bool = False
    seen: bool = False
    longest: float = 0.0
    _last: float = inf
    _turns: int = 0

    def begin(self, bottom: FrameType | None, cpu: float) -> None:
        self.bottom, self.cpu = bottom, cpu
        if not self.passed:
            self._last = cpu

    def take_turn(self) -> None:
        """Take a turn in the loop's thread."""
        cpu = time.thread_time()
        self.longest = max(self.longest, cpu - self._last)
        self._last, self.passed = cpu, True
        self._turns += 1
        if self.seen or self._turns > MOST_TURNS:
            return
        if time.monotonic() < self.due:
            self.loop.call_at(self.due, self.take_turn)
        else:
            self.loop.call_soon(self.take_turn)

    def longest_until(self, cpu: float) -> float:
        """CPU seconds that one turn of the loop has used at most, the one that is under way included."""
        return max(self.longest, cpu - self._last)


class Watchdog:
    """
    Attributes:
        slow: Where -> callbacks that used too much.
    """

    def __init__(self, limit_seconds: float = LIMIT_SECONDS) -> None:
        self.slow: Counter[str] = Counter()
        self._limit = limit_seconds
        self._logged: dict[str, float] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """The running loop, from its own thread."""
        if not hasattr(time, "pthread_getcpuclockid"):
            yield
            return
        loop, thread = asyncio.get_running_loop(), threading.get_ident()
        over = threading.Event()
        watching = threading.Thread(
            target=self._watch, args=(loop, thread, over), name="watchdog", daemon=True
        )
        watching.start()
        try:
            yield
        finally:
            over.set()
            watching.join()

    def _watch(self, loop: asyncio.AbstractEventLoop, thread: int, over: threading.Event) -> None:
        clock = time.pthread_getcpuclockid(thread)
        last_cpu, mark = time.clock_gettime(clock), _put_mark(loop, thread, clock)
        wait, delayed = BUSY_SECONDS, _delayed_seconds()
        due, waits = time.monotonic() + wait, _waits()
        while not over.wait(wait):
            now, cpu = time.monotonic(), time.clock_gettime(clock)
            waits = _waits() - waits - WAITS_OF_ITS_OWN
            used, last_cpu = cpu - last_cpu, cpu
            in_one_turn = used if mark is None else mark.longest_until(cpu)
            if mark is not None and mark.passed:
                mark.seen = True
                mark = None
            # A mark that waits is looked after even so: on a crowded host a callback has the core in slices.
            if mark is None and used < LEAST_SECONDS:
                wait = IDLE_SECONDS
            else:
                before, delayed = delayed, _delayed_seconds()
                kept_out = now - due - (delayed - before)
                waited = waits * sys.getswitchinterval()
                by_one = LEAST_SHARE * kept_out <= waited <= kept_out
                by_one = by_one and min(used, in_one_turn) - wait > self._limit
                if kept_out > self._limit and by_one:
                    if mark is None or not mark.told:
                        self._tell(thread, used - wait)
                    if mark is not None:
                        mark.told = True
                elif mark is not None and not mark.told and self._is_one(mark, thread, cpu):
                    self._tell(thread, cpu - mark.cpu)
                    mark.told = True
                if mark is None and (mark := _put_mark(loop, thread, clock)) is None:
                    return
                wait = BUSY_SECONDS
            due, waits = time.monotonic() + wait, _waits()
            if mark is not None:
                mark.due = due

    def _is_one(self, mark: _Mark, thread: int, cpu: float) -> bool:
        """Whether one callback has run since the mark, and for too long."""
        if cpu - mark.cpu <= self._limit or mark.bottom is None:
            return False
        return _bottom(thread) is mark.bottom and not mark.passed

    def _tell(self, thread: int, seconds: float) -> None:
        with _held_still():
            where, line = _place(sys._current_frames().get(thread))
        known = where in self.slow or len(self.slow) < MOST_PLACES
        self.slow[where if known else OTHER] += 1
        now = time.monotonic()
        if now - self._logged.get(where, -QUIET_SECONDS) >= QUIET_SECONDS and known:
            self._logged[where] = now
            log.warning(
                "one callback used %.0f ms of CPU time, in which no call moved: %s, at %s",
                1000 * seconds,
                where,
                line,
            )


def _put_mark(loop: asyncio.AbstractEventLoop, thread: int, clock: int) -> _Mark | None:
    """None where the loop is closed, and the end of what is watched on its way."""
    mark = _Mark(loop, time.monotonic() + BUSY_SECONDS)
    try:
        loop.call_soon_threadsafe(mark.take_turn)
    except RuntimeError:
        return None
    # Behind it: what ran while the mark was on its way, for which this thread may have waited several
    # times, is not held against who runs then.
    mark.begin(_bottom(thread), time.clock_gettime(clock))
    return mark


@contextmanager
def _held_still() -> Iterator[None]:
    """The watched thread, while this one walks its frames: no garbage is collected meanwhile.

    CPython 3.11 makes the object of a frame when it is asked for (`f_back`), which may start the collector; a
    finalizer that lets go of the interpreter lets the thread run on, and its frames are gone: a segmentation fault.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _bottom(thread: int) -> FrameType | None:
    """The frame of the callback that runs: the outermost above those of the loop."""
    stack = []
    with _held_still():
        frame = sys._current_frames().get(thread)
        while frame is not None:
            stack.append(frame)
            frame = frame.f_back
    bottom, in_loop = None, False
    for frame in reversed(stack):
        name = frame.f_code.co_filename
        if name.endswith("asyncio/events.py") and frame.f_code.co_name == "_run":
            in_loop, bottom = True, None
        elif name.endswith(_LOOPS) and bottom is None:
            in_loop = True
        elif in_loop and bottom is None:
            bottom = frame
    return bottom


def _place(frame: FrameType | None) -> tuple[str, str]:
    """The innermost function of ours, and where in which file it is."""
    innermost = frame
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith("pdgate.") and name != __name__:
            where = f"{name.removeprefix('pdgate.')}.{frame.f_code.co_qualname}"
            return where, f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    if innermost is None:
        return ELSEWHERE, "no stack"
    return ELSEWHERE, f"{innermost.f_code.co_filename}:{innermost.f_lineno}"


def _waits() -> int:
    """How often this thread has waited; for the interpreter a switch interval at most each time."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def _delayed_seconds() -> float:
    """How long this thread was ready and had no core, since it began.

    Source: Linux, Documentation/scheduler/sched-stats.rst, "/proc/<pid>/schedstat".
    """
    try:
        with open(f"/proc/self/task/{threading.get_native_id()}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except OSError:
        # Not known, so no wait of ours proves anything: less than nothing is left of it.
        return time.monotonic()
