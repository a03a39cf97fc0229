"""Of each engine it is known how near it is to what callers should get."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdgate.protocols.instance import Role
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.policy_context import Targets
from pdgate.scheduling.pressure import FULL, MANY_CALLS, NONE, Pressure, mean, pressure
from pdgate.scheduling.status import Status
from tests.support.scripted import D0, P0

TARGETS = Targets(ttft_seconds=2.0, tpot_seconds=0.05)


def reader(unread_tokens: int) -> Endpoint:
    """It reads 1,000 tokens in a second."""
    endpoint = Endpoint(P0, calls=1, tokens=unread_tokens, unread_tokens=unread_tokens)
    for tokens in (500, 1000, 1500) * 5:
        endpoint.latency.has_read(tokens, 0.0, tokens / 1000, None)
    return endpoint


def maker(calls: int, status: Status | None = None) -> Endpoint:
    """Its steps take 10 ms, and 1 ms for each answer."""
    endpoint = Endpoint(D0, calls=calls, answering=calls, status=status)
    for batch in (1, 10, 40) * 20:
        endpoint.latency.has_stepped(8, 0, 8 * (0.01 + 0.001 * batch), batch, 0)
    return endpoint


def test_who_does_nothing_is_under_none() -> None:
    assert pressure(reader(0), Role.PREFILL, TARGETS) == NONE
    assert pressure(maker(0), Role.DECODE, TARGETS) == NONE


def test_who_reads_has_no_time_left() -> None:
    assert pressure(reader(10), Role.PREFILL, TARGETS).now == pytest.approx(1 / FULL)


def test_a_long_queue_counts_as_the_wait_that_is_predicted() -> None:
    assert pressure(reader(10_000), Role.PREFILL, TARGETS).now == pytest.approx(5, rel=0.1)


def test_steps_count_as_they_are_predicted() -> None:
    found = pressure(maker(29), Role.DECODE, TARGETS)

    assert found.now == pytest.approx(0.039 / 0.05, rel=0.1)
    assert found.base == pytest.approx(0.011 / 0.05, rel=0.1)


def test_kv_counts_where_it_is_nearer_to_its_end() -> None:
    found = pressure(maker(5, Status(kv_free=0.15)), Role.DECODE, TARGETS)

    assert found.use == found.now == pytest.approx(1.0)


def test_calls_that_wait_for_a_turn_count() -> None:
    calm = pressure(maker(10, Status(running=5, waiting=0)), Role.DECODE, TARGETS)
    queued = pressure(maker(10, Status(running=2, waiting=6)), Role.DECODE, TARGETS)

    assert calm.now < 0.5
    assert queued.now == pytest.approx(0.75)


def test_unknown_engines_count_by_their_calls() -> None:
    prefill = Endpoint(P0, calls=1, tokens=40_000, unread_tokens=40_000)
    decode = Endpoint(D0, calls=MANY_CALLS, answering=MANY_CALLS)

    assert pressure(prefill, Role.PREFILL, TARGETS).now == pytest.approx(2.0)
    assert pressure(decode, Role.DECODE, TARGETS).now == pytest.approx(1.0)


def test_twice_the_calls_are_more_than_twice_the_load_of_a_step() -> None:
    """Answers stay longer, so there are more of them; and at some point it cannot be done."""
    step = Pressure(base=0.2, load=0.1)

    assert step.with_calls(1) == pytest.approx(0.3)
    assert step.with_calls(2) == pytest.approx(0.6)
    assert step.with_calls(3) == math.inf


@given(st.floats(0, 10), st.floats(0, 10), st.floats(0, 10), st.floats(0.1, 1), st.floats(1, 10))
def test_more_calls_are_never_less_pressure(
    use: float, base: float, load: float, fewer: float, more: float
) -> None:
    one = Pressure(use, base, load)

    assert one.with_calls(fewer) <= one.now * (1 + 1e-9) + 1e-12
    assert one.with_calls(more) >= one.now * (1 - 1e-9) - 1e-12


def test_the_mean_of_nobody_is_none() -> None:
    assert mean([]) == NONE
    assert mean([Pressure(0.25, 0.5), Pressure(0.75, 0.0)]) == Pressure(0.5, 0.25, 0.0)


def test_use_grows_in_proportion_whatever_steps_do() -> None:
    """Half of the KV with short steps is all of it with twice the calls, and no more."""
    assert Pressure(use=0.5, base=0.1, load=0.02).with_calls(2) == 1.0
