"""Limits that are given, and those that follow from the targets that an operator has set."""

from math import inf
from typing import Any

import pytest

from pdgate.scheduling.admission import Limits
from pdgate.scheduling.admission.limits import STEP_IN_TIME
from pdgate.scheduling.policy_context import Targets

TARGETS = Targets(ttft_seconds=5.0, tpot_seconds=0.1)
NOBODY_IS_TURNED_AWAY = (10**9, 1e9)


def turned_away_by(limits: Limits) -> tuple[int, float]:
    return limits.waiting, limits.wait_seconds


def test_without_targets_that_are_set_nothing_is_limited() -> None:
    assert Limits.of({}, TARGETS) == Limits()


def test_calls_wait_for_targets_that_are_set_and_none_is_turned_away() -> None:
    limits = Limits.of({"late_share": 0.1}, TARGETS, TARGETS)

    assert limits.prefill_seconds == 1.0
    assert limits.step_seconds == pytest.approx(STEP_IN_TIME * 0.1)
    assert limits.in_time_seconds == pytest.approx(4.25)
    assert limits.late_share == 0.1
    assert turned_away_by(limits) == NOBODY_IS_TURNED_AWAY


def test_for_a_target_that_is_not_set_none_waits() -> None:
    first = Limits.of({}, TARGETS, Targets(ttft_seconds=2.0, tpot_seconds=inf))
    other = Limits.of({}, TARGETS, Targets(ttft_seconds=inf, tpot_seconds=0.02))

    assert (first.prefill_seconds, first.step_seconds) == (0.4, None)
    assert other.prefill_seconds is None
    assert other.step_seconds == pytest.approx(0.019)
    assert other.in_time_seconds < inf


@pytest.mark.parametrize("given", [{"wait_seconds": 15.0}, {"waiting": 50}])
def test_who_says_how_long_calls_may_wait_has_the_others_turned_away(given: dict[str, Any]) -> None:
    limits = Limits.of(given, TARGETS, TARGETS)

    assert limits.prefill_seconds == 1.0
    assert turned_away_by(limits) != NOBODY_IS_TURNED_AWAY
    assert {key: getattr(limits, key) for key in given} == given


@pytest.mark.parametrize(
    "given", [{"decode_concurrency": 10**6}, {"kv_free": 0.1}, {"ttft_seconds": 90.0}], ids=str
)
def test_other_limits_hold_beside_those_of_targets(given: dict[str, Any]) -> None:
    limits = Limits.of(given, TARGETS, TARGETS)

    assert {key: getattr(limits, key) for key in given} == given
    assert limits.prefill_seconds == 1.0
    assert limits.step_seconds == pytest.approx(STEP_IN_TIME * 0.1)
    assert turned_away_by(limits) == turned_away_by(Limits())


def test_what_prefill_may_have_to_read_is_what_is_given() -> None:
    given: dict[str, Any] = {"prefill_seconds": 0.5}

    assert Limits.of(given, TARGETS, TARGETS) == Limits(**given).in_gateway(TARGETS)


@pytest.mark.parametrize("given", [{}, {"prefill_seconds": 0.5}, {"prefill_seconds": 0.0}], ids=str)
def test_no_call_waits_for_longer_than_its_prompt_may_take(given: dict[str, Any]) -> None:
    limits = Limits.of({"ttft_seconds": 9.0, **given}, TARGETS, TARGETS)

    assert limits.wait_seconds == 9.0
    assert Limits.of({"ttft_seconds": 90.0, **given}, TARGETS, TARGETS).wait_seconds == 30.0


def test_where_calls_give_way_they_wait_for_both_targets() -> None:
    limits = Limits.of({"give_way": 2}, TARGETS, Targets(ttft_seconds=inf, tpot_seconds=0.1))

    assert limits.prefill_seconds == 1.0
    assert limits.target_seconds == pytest.approx(4.25)


def test_calls_wait_at_engines_where_that_is_asked_for() -> None:
    assert not Limits.of({"prefill_seconds": 0.0}, TARGETS, TARGETS).any
