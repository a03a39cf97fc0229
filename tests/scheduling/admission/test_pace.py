import pytest

from pdgate.scheduling.admission import Pace


def test_nothing_is_said_before_two_have_begun() -> None:
    pace = Pace()
    pace.began(10.0, others_wait=True)

    assert pace.wait(before=3, now=10.0) is None


def test_those_before_begin_at_the_pace_of_late() -> None:
    pace = Pace()
    for now in (10.0, 12.0, 14.0):
        pace.began(now, others_wait=True)

    assert pace.wait(before=3, now=14.0) == pytest.approx(4 * 2.0)


def test_a_time_without_anybody_waiting_does_not_count() -> None:
    pace = Pace()
    pace.began(10.0, others_wait=True)
    pace.began(12.0, others_wait=False)
    pace.began(1000.0, others_wait=True)

    assert pace.wait(before=0, now=1000.0) == pytest.approx(2.0)


def test_calls_that_begin_several_at_a_time_are_not_taken_for_engines_that_stand_still() -> None:
    """Ten a second begin, five at once: who has forty before it waits for about four seconds."""
    pace = Pace()
    for begun in range(200):
        pace.began(10.0 + begun // 5 * 0.5, others_wait=True)

    assert pace.wait(before=39, now=10.0 + 39 * 0.5 + 0.45) == pytest.approx(4.0, rel=0.3)


def test_engines_that_stand_still_are_not_taken_to_go_on_as_before() -> None:
    pace = Pace()
    for now in (10.0, 12.0):
        pace.began(now, others_wait=True)

    assert pace.wait(before=0, now=42.0) == pytest.approx(30.0)


def test_tokens_begin_at_the_pace_of_late() -> None:
    pace = Pace()
    assert pace.tokens_per_second is None
    for begun in range(300):
        pace.began(begun * 0.1, others_wait=True, tokens=50 if begun % 2 else 150)

    assert pace.tokens_per_second == pytest.approx(1000, rel=0.02)


def test_a_pace_of_calls_without_tokens_is_none_of_tokens() -> None:
    """As of sounds, whose prompts have none."""
    pace = Pace()
    for now in (10.0, 12.0):
        pace.began(now, others_wait=True, tokens=0)
    assert pace.tokens_per_second is None

    pace.began(14.0, others_wait=True, tokens=100)

    assert pace.tokens_per_second == pytest.approx(25, rel=0.02)


def test_where_no_call_waits_any_more_no_engine_stands_still() -> None:
    pace = Pace()
    for now in (10.0, 12.0):
        pace.began(now, others_wait=True)

    pace.rest()

    assert pace.wait(before=0, now=1000.0) == pytest.approx(2.0)


def test_the_first_of_a_line_may_always_wait() -> None:
    """Else nobody would learn that engines have become quick again."""
    pace = Pace()
    for now in (10.0, 100.0):
        pace.began(now, others_wait=True)

    assert pace.beyond(before=0, now=200.0, longest=30.0) == 0
    assert pace.beyond(before=1, now=100.0, longest=30.0) == pytest.approx(150.0)


def test_what_the_only_one_waited_counts_where_none_may_wait_behind_it() -> None:
    pace = Pace()
    for now in (10.0, 100.0):
        pace.began(now, others_wait=True)
    assert pace.keeps_a_second_from_waiting(longest=30.0)
    pace.rest()

    for _ in range(100):
        pace.began(200.0, others_wait=False, waited=0.1)

    assert not pace.keeps_a_second_from_waiting(longest=30.0)
    assert pace.wait(before=0, now=200.0) == pytest.approx(0.1, abs=1.0)
