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
another. So none is found that did not use so much; one of twice the time nearly always is, one that is little above it
may not be.

A loop that is idle costs 20 samples a second of 10 us; a call costs nothing. Where there is no CPU clock of another
thread (macOS), nothing is watched.
"""

import asyncio
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
LEAST_SHARE: Final = 0.5
"""Of the time that it was kept out, which it has waited for the interpreter: usual is 0.93 and more."""
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
        bottom: Of the stack, above the loop's own frames; None for no frame of Python's.
        cpu: Of the loop's thread, in seconds, at a time when the mark was in the queue.
        passed: The mark has had its turn, so the callback that ran has ended.
    """

    bottom: FrameType | None = None
    cpu: float = inf
    passed: bool = False
    told: bool = False

    def take_turn(self) -> None:
        self.passed = True


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
        last_cpu, mark = time.clock_gettime(clock), None
        wait, delayed = IDLE_SECONDS, _delayed_seconds()
        due, waits = time.monotonic() + wait, _waits()
        while not over.wait(wait):
            now, cpu = time.monotonic(), time.clock_gettime(clock)
            waits = _waits() - waits - WAITS_OF_ITS_OWN
            used, last_cpu = cpu - last_cpu, cpu
            if mark is not None and mark.passed:
                mark = None
            # A mark that waits is looked after even so: on a crowded host a callback has the core in slices.
            if mark is None and used < LEAST_SECONDS:
                wait = IDLE_SECONDS
            else:
                before, delayed = delayed, _delayed_seconds()
                kept_out = now - due - (delayed - before)
                waited = waits * sys.getswitchinterval()
                by_one = LEAST_SHARE * kept_out <= waited <= kept_out
                if kept_out > self._limit and used - wait > self._limit and by_one:
                    if mark is None or not mark.told:
                        self._tell(thread, used - wait)
                    if mark is not None:
                        mark.told = True
                elif mark is not None and not mark.told and self._is_one(mark, thread, cpu):
                    self._tell(thread, cpu - mark.cpu)
                    mark.told = True
                if mark is None:
                    mark = _Mark()
                    try:
                        loop.call_soon_threadsafe(mark.take_turn)
                    except RuntimeError:
                        # The loop is closed, and the end of the block on its way.
                        return
                    # Both behind it: what ran while the mark was on its way, for which this thread
                    # may have waited several times, is not held against who runs then.
                    mark.bottom, mark.cpu = _bottom(thread), time.clock_gettime(clock)
                wait = BUSY_SECONDS
            due, waits = time.monotonic() + wait, _waits()

    def _is_one(self, mark: _Mark, thread: int, cpu: float) -> bool:
        """Whether one callback has run since the mark, and for too long."""
        if cpu - mark.cpu <= self._limit or mark.bottom is None:
            return False
        return _bottom(thread) is mark.bottom and not mark.passed

    def _tell(self, thread: int, seconds: float) -> None:
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


def _bottom(thread: int) -> FrameType | None:
    """The frame of the callback that runs: the outermost above those of the loop."""
    frame = sys._current_frames().get(thread)
    stack = []
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
