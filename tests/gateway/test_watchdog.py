"""Callbacks that use too much CPU time are found and named, and no others are."""

import asyncio
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

import pytest

from pdgate.gateway import watchdog
from pdgate.gateway.watchdog import ELSEWHERE, IDLE_SECONDS, LIMIT_SECONDS, OTHER, Watchdog
from pdgate.gateway.wiring import metrics
from tests.support.fleet import PATIENCE_SECONDS

pytestmark = pytest.mark.finds_slow_callbacks

FOR_CERTAIN = 4 * LIMIT_SECONDS
LONGER_THAN_A_SWITCH = 3 * sys.getswitchinterval()
"""And shorter than the limit: another thread has its turn, and is not always too late for it."""


def of_ours(source: str, name: str) -> Callable[..., Any]:
    """A function that looks like one of the gateway's."""
    found: dict[str, Any] = {"__name__": "pdgate.gateway.example", "time": time}
    exec(source, found)  # noqa: S102
    made: Callable[..., Any] = found[name]
    return made


IN_PYTHON = of_ours(
    """
def in_python(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
""",
    "in_python",
)
IN_C = of_ours(
    """
def in_c(seconds):
    # One call that lets go of nothing; as often as it takes, and then once for all of it.
    count = 100_000
    while True:
        before = time.thread_time()
        sum(range(count))
        if time.thread_time() - before >= seconds:
            return
        count *= 2
""",
    "in_c",
)


async def found(
    dog: Watchdog, one: Callable[[], Awaitable[None]], where: str | None = None
) -> None:
    """Has callbacks that take long, one after the other, until it has found one (`where`, if that is
    said): a host without a core for the watching thread lets it look when a callback is over."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (where in dog.slow if where else dog.slow):
            await asyncio.sleep(0)
            await one()
            # Another thread counts, and is to have done so before there is another one.
            for _ in range(4):
                await asyncio.sleep(IDLE_SECONDS)


@pytest.mark.parametrize("work", [IN_PYTHON, IN_C])
async def test_one_long_callback_is_named(
    work: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    """A host without a core for the watching thread lets it look when the callback is over."""
    dog = Watchdog()
    where = f"gateway.example.{work.__name__}"
    with caplog.at_level(logging.WARNING), dog.watching():
        async with asyncio.timeout(PATIENCE_SECONDS):
            while where not in dog.slow:
                await asyncio.sleep(0)
                work(FOR_CERTAIN)

    assert set(dog.slow) <= {where, ELSEWHERE}
    (_, family) = metrics.process(dog)
    counted = {sample.labels["where"]: sample.value for sample in family.samples}
    assert counted == {ELSEWHERE: 0.0} | {name: float(times) for name, times in dog.slow.items()}
    (line,) = (said for said in caplog.messages if where in said)
    assert "ms of CPU time" in line


async def test_one_step_of_a_task_is_one_callback() -> None:
    dog = Watchdog()

    async def step() -> None:
        await asyncio.sleep(0)
        IN_PYTHON(FOR_CERTAIN)

    with dog.watching():
        await found(dog, lambda: asyncio.create_task(step()))

    assert list(dog.slow.values()) == [1]


async def test_many_short_ones_are_none(caplog: pytest.LogCaptureFixture) -> None:
    """Nor the steps of one task, which are at the same place of the stack."""
    dog, loop = Watchdog(), asyncio.get_running_loop()
    with dog.watching():
        for _ in range(100):
            loop.call_soon(IN_PYTHON, LIMIT_SECONDS / 10)
            IN_PYTHON(LIMIT_SECONDS / 10)
            await asyncio.sleep(0)

    assert not dog.slow, caplog.messages


async def test_short_ones_that_let_go_again_and_again_are_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A thread that waits for the interpreter wakes up later than a system call takes."""
    dog, loop = Watchdog(), asyncio.get_running_loop()
    with dog.watching():
        for _ in range(100):
            for _ in range(10):
                loop.call_soon(IN_PYTHON, 0.6 * sys.getswitchinterval())
                loop.call_soon(os.urandom, 16)
            await asyncio.sleep(0)

    assert not dog.slow, caplog.messages


class Works:
    """The loop's thread, as another one sees it."""

    def __init__(self) -> None:
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self.is_over = False

    def wait(self, seconds: float) -> None:
        """Until it has used so much CPU time."""
        until = time.clock_gettime(self._clock) + seconds
        while not self.is_over and time.clock_gettime(self._clock) < until:
            time.sleep(0.001)

    async def does(self, times: int, seconds: float) -> None:
        """So many callbacks of so much CPU time each."""
        for _ in range(times):
            IN_PYTHON(seconds)
            await asyncio.sleep(0)
        self.is_over = True


async def test_what_ran_before_the_mark_was_there_is_not_held_against_who_runs_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Between its look at the clock and its mark the watching thread may wait for the interpreter."""
    works, delayed_seconds, looks = Works(), watchdog._delayed_seconds, count()

    def slow() -> float:
        # Before a mark, and not before the look at what became of it.
        if next(looks) % 2:
            works.wait(1.2 * LIMIT_SECONDS)
        return delayed_seconds()

    monkeypatch.setattr(watchdog, "_delayed_seconds", slow)
    dog = Watchdog()
    with dog.watching():
        await works.does(80, 0.6 * LIMIT_SECONDS)

    assert not dog.slow, caplog.messages


@contextmanager
def late(monkeypatch: pytest.MonkeyPatch, works: Works, dog: Watchdog) -> Iterator[None]:
    """`dog` watches, and is late at each of its looks but the first, at which there is no mark yet."""
    looks = count()

    class Late(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            # The thread itself has an event, too, for which others wait.
            if threading.current_thread().name == "watchdog" and next(looks):
                works.wait(4 * LIMIT_SECONDS)
            return super().wait(timeout)

    with monkeypatch.context() as patched:
        patched.setattr(threading, "Event", Late)
        watching = dog.watching()
        watching.__enter__()
    try:
        yield
    finally:
        watching.__exit__(None, None, None)


async def test_a_watchdog_whose_core_stood_still_was_not_kept_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The host of a virtual machine stops a core, and its clock with it; the loop goes on at another."""
    works = Works()
    monkeypatch.setattr(watchdog, "_waits", lambda: 0)
    dog = Watchdog()
    with late(monkeypatch, works, dog):
        await works.does(100, LONGER_THAN_A_SWITCH)

    assert not dog.slow, caplog.messages


async def test_a_late_watchdog_that_has_waited_as_for_one_asks_what_a_turn_has_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A core that stood still, and short waits in between, may together look like the waits for one callback."""
    works, began = Works(), time.monotonic()

    def waits() -> int:
        return int((time.monotonic() - began) * 0.9 / sys.getswitchinterval())

    monkeypatch.setattr(watchdog, "_waits", waits)
    dog = Watchdog()
    with late(monkeypatch, works, dog):
        await works.does(100, LONGER_THAN_A_SWITCH)

    assert not dog.slow, caplog.messages


async def test_waiting_takes_no_cpu_time() -> None:
    dog = Watchdog()
    with dog.watching():
        await asyncio.sleep(0)
        time.sleep(FOR_CERTAIN)  # noqa: ASYNC251

    assert not dog.slow


async def test_another_threads_time_is_not_the_loops() -> None:
    """What is read aside is read there."""
    dog = Watchdog()
    with dog.watching():
        await asyncio.to_thread(IN_PYTHON, FOR_CERTAIN)
        await asyncio.to_thread(IN_C, FOR_CERTAIN)

    assert not dog.slow


async def test_what_is_not_ours_is_elsewhere() -> None:
    dog = Watchdog()

    async def one() -> None:
        until = time.thread_time() + FOR_CERTAIN
        while time.thread_time() < until:
            pass

    with dog.watching():
        await found(dog, one)

    assert set(dog.slow) == {ELSEWHERE}


async def test_places_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "MOST_PLACES", 1)
    dog = Watchdog()
    dog.slow["first"] = 1

    async def one() -> None:
        IN_PYTHON(FOR_CERTAIN)

    with dog.watching():
        await found(dog, one, OTHER)

    assert set(dog.slow) == {"first", OTHER}


COLLECTING: Final = """
import gc, sys, threading
from pdgate.gateway.watchdog import _bottom

class Loose:
    def __del__(self):
        over.wait(1e-4)  # lets go of the interpreter

def litter():
    one = Loose()
    one.itself = one

def deep(depth):
    return deep(depth - 1) if depth else None

def run():
    while not ended:
        deep(200)

over, ended = threading.Event(), []
threading.Thread(target=run, name="watched", daemon=True).start()
(watched,) = [each for each in threading.enumerate() if each.name == "watched"]
sys.setswitchinterval(1e-6)
gc.set_threshold(1)
for _ in range(300):
    litter()
    _bottom(watched.ident)
ended.append(True)
watched.join()
assert gc.isenabled()
"""


def test_a_watched_thread_may_run_on_where_garbage_is_collected() -> None:
    """The frames that are walked would be gone: a segmentation fault of CPython 3.11."""
    ran = subprocess.run([sys.executable, "-c", COLLECTING], check=False, timeout=PATIENCE_SECONDS)

    assert ran.returncode == 0
