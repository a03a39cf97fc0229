"""D asks again with a pause that grows, and for its oldest request first."""

import itertools

import pytest

from pdgate.engine.neuron.lookups import LONGEST_SECONDS, SHORTEST_SECONDS, Lookups
from pdgate.engine.neuron.turns import STALE_SECONDS


def times(seconds: float) -> list[float]:
    """When a request that never succeeds is asked for."""
    lookups, now, asked = Lookups(), 0.0, []
    lookups.add("r", now)
    while now < seconds:
        asked.append(now)
        assert lookups.next(now) == "r"
        lookups.failed("r", now)
        assert lookups.next(now) is None
        now = lookups.wake_at
    return asked


def test_the_first_pauses_are_short_and_the_last_ones_long() -> None:
    asked = times(10.0)

    assert asked[1] == SHORTEST_SECONDS
    assert asked[-1] - asked[-2] == pytest.approx(LONGEST_SECONDS)


def test_a_long_wait_costs_few_lookups() -> None:
    """The reference asks without a pause."""
    assert len(times(10.0)) < 120


def test_waiting_adds_no_more_than_half_of_what_has_been_waited() -> None:
    asked = times(1.0)

    for before, after in itertools.pairwise(asked[1:]):
        assert after - before <= before / 2 + SHORTEST_SECONDS * 1.01


def test_the_oldest_that_is_due_comes_first() -> None:
    lookups = Lookups()
    for name in "abc":
        lookups.add(name, 0.0)
    lookups.failed("a", 0.0)

    assert lookups.next(0.0) == "b"
    assert lookups.next(SHORTEST_SECONDS) == "a"


def test_none_is_starved_by_newcomers() -> None:
    lookups, now, asked = Lookups(), 0.0, []
    lookups.add("old", now)
    for number in range(200):
        lookups.add(f"new {number}", now)
        for _ in range(2):
            if (name := lookups.next(now)) is not None:
                asked.append(name)
                lookups.failed(name, now)
        now += 0.005
    assert asked.count("old") > 15


def test_what_is_removed_is_not_asked_for() -> None:
    lookups = Lookups()
    lookups.add("a", 0.0)
    lookups.remove("a")

    assert lookups.next(1.0) is None
    assert lookups.wake_at == float("inf")
    assert lookups.absent("a")


def test_a_living_asker_is_never_taken_for_a_dead_one() -> None:
    assert LONGEST_SECONDS * 5 < STALE_SECONDS
