"""What the soak judges calls by, and that it runs."""

import pytest

# It is not installed, and so is imported where a test needs it: the wheel's tests have none.
pytestmark = pytest.mark.source


def test_only_a_stream_that_breaks_off_has_to_fail() -> None:
    from benchmarks.soak.faults import PREFILLED, STREAM, WHOLE, Fault, must_fail

    assert must_fail([(PREFILLED, Fault.LEAVES), (STREAM, Fault.HALF_ANSWER)])
    assert not must_fail([(WHOLE, Fault.HALF_ANSWER)])


def test_one_fault_before_the_first_byte_is_no_reason_to_fail() -> None:
    from benchmarks.soak.faults import PREFILLED, WHOLE, Fault, may_fail

    assert not may_fail([(PREFILLED, Fault.REFUSES)])
    assert may_fail([(PREFILLED, Fault.REFUSES), (WHOLE, Fault.LEAVES)])


def test_a_plan_has_its_share_of_faults_and_repeats() -> None:
    from benchmarks.soak.faults import Plan

    plan, again = Plan(0.1, seed=3), Plan(0.1, seed=3)
    drawn = [plan.draw() for _ in range(1000)]

    assert 70 < sum(fault is not None for fault in drawn) < 130
    assert drawn == [again.draw() for _ in range(1000)]


@pytest.mark.slow
async def test_a_few_seconds_show_nothing_amiss() -> None:
    from benchmarks.soak.__main__ import soak

    figures = await soak(seconds=3.0, rate=40, faults=0.1, seed=1)

    assert not figures["amiss"], figures
    assert figures["faults"] > 5
    assert figures["good"] + figures["failed"] == figures["calls"]
