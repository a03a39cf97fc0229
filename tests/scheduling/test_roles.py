"""Engines that can serve both sides go where they are needed, and do not run to and fro."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from pdgate.protocols.instance import Role
from pdgate.scheduling.pressure import Pressure
from pdgate.scheduling.roles import PERSISTS, Engine, Roles, Turn
from tests.scheduling.fluid import Flow, Fluid

READS, MAKES = Flow(4.5, 600), Flow(1.0, 4200)
"""Four engines of each side are too few for the first at prefill, and for the second at decode."""


def shifting(now: float) -> Flow:
    return READS if now < 500 else MAKES


def test_a_load_that_shifts_is_followed() -> None:
    fluid, fixed = Fluid(8, shifting).run(500), Fluid(8, shifting, fixed=True).run(1000)
    assert fluid.side(Role.PREFILL) >= 5

    fluid = Fluid(8, shifting).run(1000)

    assert fluid.side(Role.DECODE) >= 6
    assert fluid.late < fixed.late / 2


def test_it_is_followed_without_flapping() -> None:
    """Each engine changes once in each direction, at most."""
    fluid = Fluid(8, shifting, noise=0.3).run(1000)

    before = [turn.to for now, turn in fluid.turns if now < 500]
    after = [turn.to for now, turn in fluid.turns if now >= 500]
    assert set(before) == {Role.PREFILL}
    assert set(after) == {Role.DECODE}
    assert len({turn.id for now, turn in fluid.turns if now >= 500}) == len(after)


@pytest.mark.parametrize(
    "flow", [Flow(2.6, 2400), Flow(0.2, 200), Flow(9.0, 9000)], ids=["busy", "idle", "too much"]
)
def test_noise_turns_nobody(flow: Flow) -> None:
    fluid = Fluid(8, lambda _: flow, noise=0.5).run(1000)

    assert fluid.turns == []
    assert (fluid.side(Role.PREFILL), fluid.side(Role.DECODE)) == (4, 4)


def test_a_load_that_grows_slowly_is_followed_one_engine_at_a_time() -> None:
    fluid = Fluid(8, lambda now: Flow(2 + 3 * now / 1000, 2500 - 2 * now), noise=0.2).run(1000)

    times = [now for now, _ in fluid.turns]
    assert {turn.to for _, turn in fluid.turns} == {Role.PREFILL}
    assert 1 <= len(times) <= 3
    assert all(later - now >= 10 for now, later in pairwise(times))


class Scene:
    """Two engines on each side, of which the first is idle; time goes on with each decision."""

    def __init__(self, **pressures: Pressure) -> None:
        self.roles = Roles(stay_seconds=30)
        self.now = 100.0
        self.engines = {
            name: Engine(
                name,
                "g",
                Role.PREFILL if name.startswith("p") else Role.DECODE,
                movable=True,
                calls=int(name[1:]),
                pressure=pressure,
            )
            for name, pressure in pressures.items()
        }

    def change(self, name: str, to: Callable[[Engine], Engine]) -> None:
        self.engines[name] = to(self.engines[name])

    def rounds(self, count: int) -> list[Turn]:
        turns = []
        for _ in range(count):
            self.now += 5
            self.roles.see(list(self.engines.values()), self.now)
            turns += self.roles.decide(list(self.engines.values()), self.now)
        return turns


BUSY, IDLE = Pressure(use=3.0), Pressure(base=0.15, load=0.05)


def scene() -> Scene:
    return Scene(p0=BUSY, p1=BUSY, d0=IDLE, d1=IDLE)


def test_the_least_busy_goes_after_a_few_rounds_that_agree() -> None:
    made = scene()
    assert made.rounds(PERSISTS - 1) == []

    (turn,) = made.rounds(1)

    assert (turn.id, turn.to) == ("d0", Role.PREFILL)
    assert turn.reason.startswith("prefill is at 3.00 of its target, decode at 0.20")


def test_one_round_that_disagrees_begins_anew() -> None:
    made = scene()
    made.rounds(PERSISTS - 1)
    for pressure in (IDLE, BUSY):
        # So long that nothing is left of what was before.
        made.now += 1000
        for name in ("p0", "p1"):
            made.engines[name] = replace(made.engines[name], pressure=pressure)
        assert made.rounds(1) == []

    assert made.rounds(PERSISTS - 2) == []
    assert len(made.rounds(1)) == 1


def test_who_has_just_come_stays() -> None:
    made = scene()
    for name in ("d0", "d1"):
        made.change(name, lambda one: replace(one, since=100.0))

    assert made.rounds(5) == [], "25 seconds have passed"
    assert len(made.rounds(1)) == 1


def test_nobody_goes_while_another_is_turning() -> None:
    made = scene()
    made.change("p1", lambda one: replace(one, turning=True))

    assert made.rounds(10) == []


def test_nobody_is_the_last_of_its_side_when_it_goes() -> None:
    assert Scene(p0=BUSY, p1=BUSY, d0=IDLE).rounds(10) == []


def test_who_has_one_role_only_stays() -> None:
    made = scene()
    for name in ("d0", "d1"):
        made.change(name, lambda one: replace(one, movable=False))

    assert made.rounds(10) == []


def test_a_side_that_would_not_keep_its_own_target_gives_nobody() -> None:
    """0.7 of it with two engines is far beyond it with one."""
    assert (
        Scene(
            p0=BUSY, p1=BUSY, d0=Pressure(base=0.2, load=0.5), d1=Pressure(base=0.2, load=0.5)
        ).rounds(10)
        == []
    )


def test_what_more_engines_would_not_make_better_gets_none() -> None:
    """A step is too long with a single answer in it."""
    long_steps = Pressure(base=1.5, load=0.05)

    assert Scene(p0=IDLE, p1=IDLE, d0=long_steps, d1=long_steps).rounds(10) == []


def test_a_side_that_has_lost_everybody_gets_one_at_once() -> None:
    (turn,) = Scene(d1=IDLE, d0=IDLE).rounds(1)

    assert (turn.id, turn.to, turn.reason) == ("d0", Role.PREFILL, "no prefill engine is left")


def test_the_only_engine_there_is_stays_where_it_is() -> None:
    assert Scene(d0=IDLE).rounds(5) == []


def test_new_engines_go_to_the_side_with_fewer_or_to_the_busy_one() -> None:
    made = Scene(p0=IDLE, p1=IDLE, d0=IDLE)
    made.engines["e9"] = Engine("e9", "g", None, movable=True)
    assert made.rounds(1) == [Turn("e9", Role.DECODE, "the side with fewer engines", first=True)]

    made = Scene(p0=BUSY, p1=BUSY, d0=IDLE)
    made.rounds(1)
    made.engines["e9"] = Engine("e9", "g", None, movable=True)

    (turn,) = made.rounds(1)
    assert (turn.to, turn.reason) == (Role.PREFILL, "the side under more pressure")


def test_engines_that_cannot_be_paired_do_not_count_for_each_other() -> None:
    made = Scene(p0=BUSY, p1=BUSY, d0=BUSY, d1=BUSY)
    for name in ("d8", "d9"):
        made.engines[name] = Engine(name, "other", Role.DECODE, movable=False)

    assert made.rounds(10) == []


def test_the_same_is_decided_from_the_same() -> None:
    """So gateways that see the same and cannot talk do the same."""
    one, other = scene(), scene()
    other.engines = dict(reversed(other.engines.items()))

    assert one.rounds(10) == other.rounds(10)


def test_what_is_seen_for_a_moment_counts_a_little() -> None:
    """Five of fifteen seconds."""
    made = Scene(p0=IDLE, d0=IDLE)
    made.rounds(1)
    made.change("p0", lambda one: replace(one, pressure=BUSY))

    made.rounds(1)

    assert made.roles.pressure("g", Role.PREFILL).use == pytest.approx(0.85, rel=0.01)
