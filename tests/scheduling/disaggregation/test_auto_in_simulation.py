"""On simulated engines `auto` is never much worse than the better one of always and never.

What counts is when answers are complete, also of the first calls, when nothing is known yet.
No rule can be as good as both in the first token and in the pace: where engines are equally
fast, `never` gives the first tokens sooner, as two engines read prompts then, and `always`
the even pace. Where one of them is better in both, `auto` is as good as that one.
"""

import random

import pytest

from pdgate.scheduling.disaggregation import Always, Auto, Never, SplitRule, UncachedTokensAbove
from tests.scheduling.disaggregation.simulation import Seen, Simulation, Speeds

CALLS = {1: 150, 4: 300, 16: 600}
"""Of so many clients."""

ANSWER_TOKENS = 32
SHORT, LONG = 50, 2000
MIXES = (0.0, 0.25, 0.75, 1.0)
FLEETS = {
    "equal": Speeds(),
    "slow transfer": Speeds(hand_over_seconds=0.3),
    "slow decode": Speeds(decode=0.001),
    "slow prefill": Speeds(prefill=0.001),
    "room in steps": Speeds(room_tokens=200),
}


def seen(rule: SplitRule, mix: float, clients: int, speeds: Speeds) -> Seen:
    calls = CALLS[clients]
    long = round(calls * mix)
    prompts = [LONG] * long + [SHORT] * (calls - long)
    random.Random(3).shuffle(prompts)
    return Simulation(rule, prompts, speeds, clients, ANSWER_TOKENS).run()


def whole_answer(of: Seen) -> float:
    """Seconds."""
    return of.first + (ANSWER_TOKENS - 1) * of.gap


def auto() -> Auto:
    return Auto(UncachedTokensAbove(tokens=200, max_prefill_calls=2))


@pytest.mark.parametrize("clients", CALLS)
@pytest.mark.parametrize("fleet", FLEETS)
def test_answers_are_complete_as_soon_as_under_the_better_rule(fleet: str, clients: int) -> None:
    worse = {}
    for mix in MIXES:
        always, never, chosen = (
            whole_answer(seen(rule, mix, clients, FLEETS[fleet]))
            for rule in (Always(), Never(), auto())
        )
        worse[mix] = chosen / min(always, never)

    assert max(worse.values()) < 1.1, worse


@pytest.mark.parametrize("clients", CALLS)
def test_short_prompts_that_ride_along_stay_with_decode(clients: int) -> None:
    """`never` is better in both numbers then, but makes streams begin and end together."""
    rules = Always(), Never(), auto()
    always, never, chosen = (seen(rule, 0.0, clients, FLEETS["room in steps"]) for rule in rules)

    assert never.first < always.first
    assert chosen.first < 1.1 * never.first
    assert chosen.gap < 1.1 * min(always.gap, never.gap)


def test_the_two_goals_contradict_each_other() -> None:
    """Which is why neither of them alone is the measure above."""
    always, never = (seen(rule, 0.5, 4, FLEETS["equal"]) for rule in (Always(), Never()))

    assert never.first < 0.7 * always.first
    assert always.gap < 0.7 * never.gap


def test_in_a_mix_auto_is_better_than_both() -> None:
    """Short prompts stay on decode, and long ones do not hold them up."""
    always, never, chosen = (
        whole_answer(seen(rule, 0.25, 16, FLEETS["equal"])) for rule in (Always(), Never(), auto())
    )

    assert chosen < 0.95 * min(always, never)
