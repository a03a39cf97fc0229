"""Who fails again and again gets no calls for a while, and is back as soon as one ends well."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdgate.scheduling.health.breaker import HALF, WINDOW, Breaker, BreakerLimits, BreakerState

LIMITS = BreakerLimits(failures=3, retry_seconds=0.5)


def opened(limits: BreakerLimits = LIMITS) -> Breaker:
    breaker = Breaker()
    for _ in range(limits.failures):
        breaker.failed(0.0, limits)
    assert breaker.state is BreakerState.OPEN
    return breaker


def on_trial() -> Breaker:
    breaker = opened()
    assert breaker.seen_well(1.0, LIMITS)
    return breaker


def test_failures_in_a_row_open_it_and_no_fewer() -> None:
    breaker = Breaker()

    assert [breaker.failed(0.0, LIMITS) for _ in range(3)] == [False, False, True]


def test_a_success_between_begins_a_new_row() -> None:
    breaker = Breaker()
    for _ in range(3):
        breaker.failed(0.0, LIMITS)
        breaker.worked()
        breaker.failed(0.0, LIMITS)
        breaker.worked()

    assert breaker.state is BreakerState.CLOSED


def test_half_of_the_last_legs_open_it_though_none_are_in_a_row() -> None:
    breaker = Breaker()
    for _ in range(HALF - 1):
        breaker.failed(0.0, LIMITS)
        breaker.worked()

    assert breaker.failed(0.0, LIMITS)


def test_what_is_long_ago_is_forgotten() -> None:
    breaker = Breaker()
    for _ in range(HALF - 1):
        breaker.failed(0.0, LIMITS)
        breaker.worked()
    for _ in range(WINDOW):
        breaker.worked()

    assert not breaker.failed(0.0, LIMITS)


def test_without_a_limit_it_never_opens() -> None:
    breaker = Breaker()
    for _ in range(2 * WINDOW):
        breaker.failed(0.0, BreakerLimits(failures=0))

    assert breaker.state is BreakerState.CLOSED


def test_a_good_look_puts_it_on_trial_but_not_at_once() -> None:
    """A look that began before the failures would undo them."""
    breaker = opened()

    assert not breaker.seen_well(0.4, LIMITS)
    assert breaker.seen_well(0.5, LIMITS)
    assert breaker.state is BreakerState.TRIAL


def test_one_good_call_closes_it_and_forgets_what_was() -> None:
    breaker = on_trial()

    assert breaker.worked()
    assert breaker.state is BreakerState.CLOSED
    assert not breaker.failed(2.0, LIMITS)


def test_one_bad_call_on_trial_opens_it_again() -> None:
    breaker = on_trial()

    assert breaker.failed(2.0, LIMITS)
    assert not breaker.seen_well(2.4, LIMITS)
    assert breaker.seen_well(2.5, LIMITS)


def test_old_streams_that_end_well_do_not_close_it() -> None:
    breaker = opened()

    assert not breaker.worked()
    assert breaker.state is BreakerState.OPEN


def test_a_failure_that_was_the_calls_fault_is_taken_back() -> None:
    breaker = opened()

    assert breaker.excuse()
    assert breaker.state is BreakerState.TRIAL

    nearly = Breaker()
    nearly.failed(0.0, LIMITS)
    nearly.failed(0.0, LIMITS)
    assert not nearly.excuse()
    assert not nearly.failed(0.0, LIMITS)


@given(st.lists(st.sampled_from(["worked", "failed", "seen", "excuse"]), max_size=60))
def test_however_it_got_there_a_look_and_a_good_call_bring_it_back(steps: list[str]) -> None:
    breaker, now = Breaker(), 0.0
    for step in steps:
        now += 0.3
        match step:
            case "worked":
                breaker.worked()
            case "failed":
                breaker.failed(now, LIMITS)
            case "seen":
                breaker.seen_well(now, LIMITS)
            case "excuse":
                breaker.excuse()

    breaker.seen_well(now + 2 * LIMITS.retry_seconds, LIMITS)
    breaker.worked()

    assert breaker.state is BreakerState.CLOSED


@pytest.mark.parametrize("failures", [1, 5, WINDOW])
def test_any_row_up_to_what_is_remembered_counts(failures: int) -> None:
    # Half of the window opens it anyway.
    expected = min(failures, HALF)
    breaker, limits, count = Breaker(), BreakerLimits(failures=failures), 0
    while breaker.state is BreakerState.CLOSED:
        breaker.failed(0.0, limits)
        count += 1

    assert count == expected
