import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import pytest

from pdgate.gateway.deadlines import TICK_SECONDS, Deadlines


class Clock:
    """The part of an event loop that deadlines use; time passes when told."""

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


@dataclass(eq=False)
class Limit:
    """Remembers when it expired."""

    clock: Clock
    then: Callable[[], None] = lambda: None
    expired_at: list[float] = field(default_factory=list)
    seconds: float = 0.0
    seen: bool = False
    due: float = 0.0

    def expired(self) -> None:
        self.expired_at.append(self.clock.now)
        self.then()


@pytest.fixture
def deadlines(clock: Clock) -> Deadlines:
    return Deadlines(cast(asyncio.AbstractEventLoop, clock))


@pytest.mark.parametrize("seconds", [0.05, 0.3, 1.0, 7.3, 60.0, 600.0])
def test_a_limit_expires_once_and_never_early(
    clock: Clock, deadlines: Deadlines, seconds: float
) -> None:
    limit, start = Limit(clock), clock.now
    deadlines.watch(limit, seconds)

    clock.pass_seconds(3 * seconds + 5)

    (expired,) = limit.expired_at
    assert seconds <= expired - start <= seconds + 2 * TICK_SECONDS


@pytest.mark.parametrize("seconds", [0.5, 8.0, 100.0])
def test_silence_is_counted_from_the_last_sign_of_life(
    clock: Clock, deadlines: Deadlines, seconds: float
) -> None:
    limit = Limit(clock)
    deadlines.watch(limit, seconds)
    for _ in range(20):
        clock.pass_seconds(seconds * 0.7)
        limit.seen = True
    last = clock.now
    assert not limit.expired_at

    clock.pass_seconds(2 * seconds + 5)

    (expired,) = limit.expired_at
    assert seconds <= expired - last <= seconds + 2 * TICK_SECONDS


def test_what_is_forgotten_does_not_expire(clock: Clock, deadlines: Deadlines) -> None:
    limit = Limit(clock)
    deadlines.watch(limit, 1)
    deadlines.forget(limit)
    deadlines.forget(limit)

    clock.pass_seconds(10)

    assert not limit.expired_at


def test_one_that_expires_may_forget_another_that_is_due(
    clock: Clock, deadlines: Deadlines
) -> None:
    pair = [Limit(clock), Limit(clock)]
    for one, other in (pair, pair[::-1]):
        one.then = lambda other=other: deadlines.forget(other)  # type: ignore[misc]
        deadlines.watch(one, 1)

    clock.pass_seconds(5)

    assert sum(len(limit.expired_at) for limit in pair) == 1


def test_a_new_span_counts_from_now(clock: Clock, deadlines: Deadlines) -> None:
    limit = Limit(clock)
    deadlines.watch(limit, 1)
    clock.pass_seconds(0.5)
    deadlines.forget(limit)
    clock.pass_seconds(10)
    again = clock.now
    deadlines.watch(limit, 2)
    clock.pass_seconds(10)

    (expired,) = limit.expired_at
    assert 2 <= expired - again <= 2 + 2 * TICK_SECONDS


def test_no_limit_ends_the_one_before(clock: Clock, deadlines: Deadlines) -> None:
    limit = Limit(clock)
    deadlines.watch(limit, 1)
    deadlines.watch(limit, None)

    clock.pass_seconds(5)

    assert not limit.expired_at
    assert not deadlines.timer is not None


def test_no_limit_means_no_timer(clock: Clock, deadlines: Deadlines) -> None:
    deadlines.watch(Limit(clock), None)

    assert not deadlines.timer is not None


def test_no_timer_runs_while_nothing_is_watched(clock: Clock, deadlines: Deadlines) -> None:
    for seconds in (1, 1000):
        limit = Limit(clock)
        deadlines.watch(limit, seconds)
        deadlines.forget(limit)

    clock.pass_seconds(5)

    assert not deadlines.timer is not None


def test_thousands_share_a_timer(clock: Clock, deadlines: Deadlines) -> None:
    for _ in range(5000):
        clock.pass_seconds(0.0001)
        limit = Limit(clock)
        deadlines.watch(limit, 60)
        deadlines.forget(limit)

    assert clock.scheduled < 10


def test_one_that_fails_leaves_the_others(clock: Clock, deadlines: Deadlines) -> None:
    def bug() -> None:
        raise LookupError

    limits = [Limit(clock, bug), Limit(clock), Limit(clock)]
    for limit, seconds in zip(limits, (1, 1, 2), strict=True):
        deadlines.watch(limit, seconds)

    with pytest.raises(LookupError):
        clock.pass_seconds(1.3)
    clock.pass_seconds(3)

    assert [len(limit.expired_at) for limit in limits] == [1, 1, 1]


def test_closing_forgets_everything(clock: Clock, deadlines: Deadlines) -> None:
    limit = Limit(clock)
    deadlines.watch(limit, 1)
    deadlines.close()

    clock.pass_seconds(5)

    assert not limit.expired_at
    assert not deadlines.timer is not None
