"""What can be said, and what cannot, of calls and counters over one stretch of time."""

from dataclasses import replace

import pytest

from pdgate.gateway.engine_metrics.counters import EngineCounters
from pdgate.gateway.verification.window import NOTHING, Given, WindowResult, WindowVerdict, judge

NOBODY = Given()


def grew(
    computed: float, cached: float, transferred: float, first_tokens: float | None = None
) -> EngineCounters:
    return EngineCounters(
        computed=computed, cached=cached, transferred=transferred, first_tokens=first_tokens
    )


def test_a_token_per_request_is_computed_by_every_decode() -> None:
    verdict = judge(grew(2, 0, 300, 2), NOBODY, Given(handed_over=2))

    assert verdict == WindowVerdict(WindowResult.VERIFIED, verified=302)


def test_what_decode_still_had_need_not_come_again() -> None:
    verdict = judge(grew(0, 300, 0, 2), NOBODY, Given(handed_over=2))

    assert verdict == WindowVerdict(WindowResult.VERIFIED, verified=300)


def test_a_decode_to_which_nothing_came_has_recomputed() -> None:
    verdict = judge(grew(300, 0, 0, 2), NOBODY, Given(handed_over=2))

    assert verdict == WindowVerdict(WindowResult.RECOMPUTED, verified=2, recomputed=298)


def test_a_decode_that_finds_prefixes_in_its_cache_has_recomputed_the_rest() -> None:
    verdict = judge(grew(200, 100, 0, 2), NOBODY, Given(handed_over=2))

    assert verdict == WindowVerdict(WindowResult.RECOMPUTED, verified=102, recomputed=198)


def test_what_decode_chose_to_compute_was_not_computed_twice() -> None:
    """It has the decision, where it is told of it (decode-first)."""
    chosen = replace(grew(301, 0, 99, 2), chosen=300.0)

    verdict = judge(chosen, NOBODY, Given(handed_over=2))

    assert verdict == WindowVerdict(WindowResult.VERIFIED, verified=100)


def test_one_failed_load_among_many_is_counted_and_no_fault_of_setup() -> None:
    verdict = judge(grew(200, 0, 9_900, 100), NOBODY, Given(handed_over=100))

    assert verdict == WindowVerdict(WindowResult.VERIFIED, verified=10_000, recomputed=100)


def test_what_decode_computes_by_design_is_no_surplus() -> None:
    """A protocol that hands over full blocks leaves the rest of each prompt to decode."""
    counted = grew(100 * 15, 0, 9_900, 100)

    verdict = judge(counted, NOBODY, Given(handed_over=100), spare=16)

    assert verdict == WindowVerdict(WindowResult.VERIFIED, verified=11_400)


def test_requests_are_as_many_as_there_can_be_where_the_engine_does_not_count_them() -> None:
    started = Given(calls=3)

    assert judge(grew(5, 0, 300), started, Given(handed_over=4, calls=1)) == WindowVerdict(
        WindowResult.VERIFIED, verified=305
    )
    assert judge(grew(305, 0, 0), NOBODY, Given(handed_over=5)) == WindowVerdict(
        WindowResult.RECOMPUTED, verified=5, recomputed=300
    )


@pytest.mark.parametrize(
    ("counted", "before", "now"),
    [
        pytest.param(grew(400, 0, 300, 2), NOBODY, Given(handed_over=1, whole=1), id="whole call"),
        pytest.param(
            grew(400, 0, 300, 2), Given(calls=1, reads=True), Given(handed_over=1), id="read late"
        ),
        pytest.param(grew(400, 0, 300, 9), NOBODY, Given(handed_over=1), id="other clients"),
    ],
)
def test_who_computes_for_others_too_cannot_be_verified(
    counted: EngineCounters, before: Given, now: Given
) -> None:
    assert judge(counted, before, now) == WindowVerdict(
        WindowResult.UNVERIFIABLE, verified=300, unverifiable=400
    )


def test_another_clients_call_is_not_held_against_decode_while_ours_go_on() -> None:
    streaming = Given(calls=5)
    now = Given(handed_over=1, calls=6)

    assert judge(grew(5_001, 0, 99, 2), streaming, now) == WindowVerdict(
        WindowResult.UNVERIFIABLE, verified=99, unverifiable=5_001
    )


def test_calls_in_flight_do_not_excuse_that_nothing_came() -> None:
    verdict = judge(grew(300, 0, 0, 3), Given(calls=2), Given(handed_over=1, calls=2))

    assert verdict == WindowVerdict(WindowResult.RECOMPUTED, verified=3, recomputed=297)


def test_whoever_asks_if_nothing_is_computed_nothing_is_recomputed() -> None:
    """So several gateways over one healthy engine all say verified."""
    verdict = judge(grew(9, 600, 300, 9), NOBODY, Given(handed_over=1, whole=1))

    assert verdict == WindowVerdict(WindowResult.VERIFIED, verified=909)


def test_with_other_calls_about_it_takes_a_second_page_to_accuse() -> None:
    """The call that was handed over may just not be on the first one."""
    counted, now = grew(400, 0, 0, 2), Given(handed_over=1, whole=1)

    assert judge(counted, NOBODY, now) is None
    assert judge(counted, NOBODY, now, doubted=True) == WindowVerdict(
        WindowResult.RECOMPUTED, unverifiable=400
    )


@pytest.mark.parametrize(
    ("counted", "now"),
    [
        pytest.param(grew(0, 0, 0, 0), Given(handed_over=1), id="not yet counted"),
        pytest.param(grew(1, 0, 90, 1), Given(calls=1), id="not yet answered"),
    ],
)
def test_a_call_that_only_one_side_knows_of_waits_for_the_next_page(
    counted: EngineCounters, now: Given
) -> None:
    assert judge(counted, NOBODY, now) is None


def test_other_clients_calls_are_not_ours_to_judge() -> None:
    assert judge(grew(500, 0, 0, 1), NOBODY, NOBODY) == NOTHING


def test_an_engine_that_does_not_count_cannot_be_verified() -> None:
    assert judge(EngineCounters(first_tokens=1), NOBODY, Given(handed_over=1)) == WindowVerdict(
        WindowResult.UNVERIFIABLE
    )
    assert judge(EngineCounters(), NOBODY, NOBODY) == NOTHING


def test_prompts_of_one_token_say_nothing() -> None:
    assert judge(grew(2, 0, 0, 2), NOBODY, Given(handed_over=2)) == WindowVerdict(
        WindowResult.UNVERIFIABLE, unverifiable=2
    )
