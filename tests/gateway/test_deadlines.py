import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from pdgate.gateway.deadlines import Deadlines


class Clock:
    """The part of an event loop that the wheel uses; time passes when told."""

    class Timer:
        def __init__(self, at: float, call: Callable[[], None]) -> None:
            self.at = at
            self.call = call
            self.cancelled = False

        def cancel(self) -> None:
            self.cancelled = True

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: list[Clock.Timer] = []
        self.scheduled = 0

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[[], None]) -> "Clock.Timer":
        timer = Clock.Timer(when, call)
        self.timers.append(timer)
        self.scheduled += 1
        return timer

    def pass_seconds(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [t for t in self.timers if not t.cancelled and t.at <= end]:
            timer = min(due, key=lambda t: t.at)
            self.timers.remove(timer)
            self.now = max(self.now, timer.at)
            timer.call()
        self.now = end


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def deadlines(clock: Clock) -> Deadlines:
    return Deadlines(cast(asyncio.AbstractEventLoop, clock))


@pytest.mark.parametrize("seconds", [0.05, 0.3, 1.0, 7.3, 60.0, 600.0])
def test_a_deadline_fires_once_and_never_early(
    clock: Clock, deadlines: Deadlines, seconds: float
) -> None:
    fired: list[float] = []
    start = clock.now
    deadlines.arm(seconds, lambda: fired.append(clock.now - start))

    clock.pass_seconds(3 * seconds + 5)

    assert len(fired) == 1
    # Long ones share coarse buckets of a second.
    assert seconds - 0.011 <= fired[0] <= seconds + (0.11 if seconds < 10 else 1.1)


@pytest.mark.parametrize("seconds", [0.5, 8.0, 100.0])
def test_silence_is_counted_from_the_last_touch(
    clock: Clock, deadlines: Deadlines, seconds: float
) -> None:
    fired: list[float] = []
    deadline = deadlines.arm(seconds, lambda: fired.append(clock.now))
    for _ in range(20):
        clock.pass_seconds(seconds * 0.7)
        deadline.touch()
    last_touch = clock.now
    assert not fired

    clock.pass_seconds(2 * seconds + 5)

    assert seconds <= fired[0] - last_touch <= seconds * 1.25 + 1.2


def test_a_cancelled_deadline_does_not_fire(clock: Clock, deadlines: Deadlines) -> None:
    deadline = deadlines.arm(1, pytest.fail)
    deadline.cancel()
    deadline.cancel()

    clock.pass_seconds(10)


def test_a_deadline_may_cancel_another_of_its_bucket(clock: Clock, deadlines: Deadlines) -> None:
    fired: list[int] = []
    pair = {each: deadlines.arm(1, lambda each=each: end(each)) for each in (0, 1)}  # type: ignore[misc]

    def end(each: int) -> None:
        fired.append(each)
        pair[1 - each].cancel()

    clock.pass_seconds(5)

    assert len(fired) == 1


def test_no_limit_means_no_timer(clock: Clock, deadlines: Deadlines) -> None:
    deadlines.arm(None, pytest.fail).touch()

    assert not deadlines.waiting


def test_no_timer_runs_while_nothing_is_armed(clock: Clock, deadlines: Deadlines) -> None:
    deadlines.arm(1, lambda: None).cancel()
    deadlines.arm(1000, lambda: None).cancel()

    clock.pass_seconds(5)

    assert not deadlines.waiting


def test_thousands_of_deadlines_share_a_timer(clock: Clock, deadlines: Deadlines) -> None:
    for _ in range(5000):
        clock.pass_seconds(0.0001)
        deadlines.arm(60, lambda: None).cancel()

    assert clock.scheduled < 10


def test_a_failing_callback_leaves_the_others(clock: Clock, deadlines: Deadlines) -> None:
    def bug() -> None:
        raise LookupError

    fired: list[int] = []
    deadlines.arm(1, bug)
    deadlines.arm(1, lambda: fired.append(1))
    deadlines.arm(2, lambda: fired.append(2))

    with pytest.raises(LookupError):
        clock.pass_seconds(1.2)
    clock.pass_seconds(3)

    assert fired == [1, 2]


def test_closing_forgets_everything(clock: Clock, deadlines: Deadlines) -> None:
    deadlines.arm(1, lambda: pytest.fail("closed"))
    deadlines.close()

    clock.pass_seconds(5)

    assert not deadlines.waiting
