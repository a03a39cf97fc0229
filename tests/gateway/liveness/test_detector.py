"""What a look at the legs makes of them; its clock is the test's."""

from collections.abc import Callable, Sequence

import pytest

from pdgate.gateway.engine_metrics.counters import EngineCounters
from pdgate.gateway.engine_metrics.page import MetricsPage
from pdgate.gateway.liveness.detector import SWEEP_SECONDS, Detector
from pdgate.gateway.liveness.question import Answered
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.reservation import Reservation

SECONDS = 10.0
D0 = Instance("d0", "http://10.0.1.1:8200", Role.DECODE, "plain")


class Leg:
    """A stream that has begun, and has been silent since `heard`."""

    def __init__(self, at: Instance) -> None:
        self.at = at
        self.has_begun = True
        self.behind, self.loads = "", False
        self.streams, self.prompt_tokens = True, 10
        self.heard = 0.0
        self.ended = ""

    def silent_since(self, now: float) -> float:
        return self.heard

    def given_up(self, at: str, why: str, *, waited: bool) -> None:
        self.ended = why


def detector(*legs: Leg) -> Detector:
    return detector_of(legs)


def detector_of(legs: Sequence[Leg]) -> Detector:
    """Its questions are never answered, as nobody asks them."""
    endpoints = Endpoints([D0])
    endpoints.mark_up(D0.id, ["m"])
    return Detector(lambda: legs, endpoints, SECONDS, lambda _: None)


def sweep_until_the_end(detector: Detector, leg: Leg, *, late: float = 0.0) -> float:
    """When the leg ended. The first sweep after five seconds comes so late."""
    now = 0.0
    while not leg.ended:
        unheard, late = (late, 0.0) if now > SECONDS / 2 else (0.0, late)
        now += SWEEP_SECONDS + unheard
        detector.sweep(now, unheard)
        assert now < 10 * SECONDS
    return now


def test_a_leg_of_an_engine_that_answers_nothing_ends_within_two_seconds_of_the_bound() -> None:
    leg = Leg(D0)
    assert SECONDS <= sweep_until_the_end(detector(leg), leg) <= SECONDS + 2


def test_a_leg_of_an_engine_that_answers_and_counts_nothing_ends_within_two_and_a_half_seconds() -> (
    None
):
    """Of the bound: another engine has to be asked then, within what a client may wait."""
    leg = Leg(D0)
    watching = detector(leg)
    page = MetricsPage(EngineCounters(steps=40), running=1, waiting=0)
    now = 0.3
    while not leg.ended:
        now += SWEEP_SECONDS
        for silence in watching.sweep(now):
            silence.heard(Answered(page), now)
    assert "stopped working" in leg.ended
    assert SECONDS + 1 <= now <= SECONDS + 2.5


def test_an_engine_that_was_told_to_stand_still_is_silent_from_when_it_may_go_on() -> None:
    leg, still = Leg(D0), [True]
    endpoints = Endpoints([D0])
    endpoints.mark_up(D0.id, ["m"])
    watching = Detector(
        lambda: [leg], endpoints, SECONDS, lambda _: None, stopped=lambda _: still[0]
    )
    now = 0.0
    while now < 6 * SECONDS:
        now += SWEEP_SECONDS
        watching.sweep(now)
    assert not leg.ended
    still[0] = False
    while not leg.ended:
        now += SWEEP_SECONDS
        watching.sweep(now)
    assert 7 * SECONDS <= now <= 7 * SECONDS + 2


def test_a_leg_that_came_just_before_the_end_does_not_wait_as_long_again() -> None:
    legs: list[Leg] = []
    watching = detector_of(legs)
    now = 0.0
    first, late = Leg(D0), Leg(D0)
    legs.append(first)
    late.has_begun = False
    while not first.ended:
        now += SWEEP_SECONDS
        if now > SECONDS + 0.5 and late not in legs:
            late.heard = now
            legs.append(late)
        watching.sweep(now)
    assert not late.ended
    legs.remove(first)
    while not late.ended:
        now += SWEEP_SECONDS
        watching.sweep(now)
        assert now <= SECONDS + 3


def test_a_leg_that_comes_while_another_waits_does_not_wait_as_long_again_if_that_one_ends() -> (
    None
):
    """As one that decode gives up by itself, or whose client goes."""
    first, late = Leg(D0), Leg(D0)
    legs = [first]
    watching = detector_of(legs)
    now = 0.0
    late.has_begun = False
    while not late.ended:
        now += SWEEP_SECONDS
        if now == SECONDS - 2:
            late.heard = now - 0.1
            legs.append(late)
        if now == SECONDS - 1:
            legs.remove(first)
        watching.sweep(now)
        assert now <= SECONDS + 2


def test_a_leg_that_comes_after_another_has_ended_is_given_its_own_time() -> None:
    first, late = Leg(D0), Leg(D0)
    legs = [first]
    watching = detector_of(legs)
    now = 0.0
    late.has_begun = False
    while not late.ended:
        now += SWEEP_SECONDS
        if now == SECONDS - 2:
            legs.remove(first)
        if now == SECONDS - 1:
            late.heard = now - 0.1
            legs.append(late)
        watching.sweep(now)
    assert 2 * SECONDS - 1.5 <= now <= 2 * SECONDS + 2


def test_time_in_which_nobody_listened_is_no_silence() -> None:
    leg = Leg(D0)
    at = sweep_until_the_end(detector(leg), leg, late=3 * SECONDS)
    assert 4 * SECONDS <= at <= 4 * SECONDS + 2


def test_a_byte_on_one_leg_is_a_sign_of_life_for_all() -> None:
    silent, live = Leg(D0), Leg(D0)
    watching = detector(silent, live)
    for half_seconds in range(200):
        live.heard = half_seconds / 2
        watching.sweep(half_seconds / 2)
    assert not silent.ended


def test_an_engine_worked_lately_if_a_leg_ended_well_there_in_the_last_seconds() -> None:
    endpoints = Endpoints([D0])
    watching = Detector(list, endpoints, SECONDS, lambda _: None)
    found = endpoints.get(D0.id)
    assert found is not None
    seen = []
    for now in (0.0, 1.0, 2.0, 2.0 + SECONDS, 2.5 + SECONDS):
        found.ended_well += now == 2.0
        watching.sweep(now)
        seen.append(found.worked_lately)
    assert seen == [False, False, True, True, False]


@pytest.mark.parametrize(
    ("shown", "learns"),
    [
        (False, Reservation.presume_end),
        (False, Reservation.presume_read),
        (False, Reservation.withdraw),
        (False, Reservation.end),
        (True, Reservation.was_read),
        (True, lambda reserved: reserved.read(0.1)),
        (True, lambda reserved: reserved.has_read(0.1)),
    ],
)  # fmt: skip
def test_an_engine_worked_lately_if_it_has_shown_that_a_prompt_was_read(
    shown: bool, learns: Callable[[Reservation], object]
) -> None:
    """A prefill engine that only decode engines ask ends no leg of ours."""
    endpoints = Endpoints([D0])
    watching = Detector(list, endpoints, SECONDS, lambda _: None)
    found = endpoints.get(D0.id)
    assert found is not None
    reserved = Reservation(found, 1000, True)
    watching.sweep(0.0)
    watching.sweep(2 * SECONDS)
    learns(reserved)
    watching.sweep(2 * SECONDS + 1)
    assert found.worked_lately is shown
    reserved.end()


def test_nothing_is_given_up_where_that_is_off() -> None:
    leg = Leg(D0)
    watching = detector(leg)
    watching.seconds = 0
    for half_seconds in range(200):
        assert watching.sweep(half_seconds / 2) == []
    assert not leg.ended
