"""Plans are functions of number and seed."""

import pytest

from pdgate.lab.chaos.fault import Cut, Delay, Refuse
from pdgate.lab.chaos.plan import Plan, Rule

THOUSAND = range(1, 1001)
CUT, DELAY = Cut(10), Delay(1.0)


def hit(plan: Plan) -> list[int]:
    return [number for number in THOUSAND if plan.choose(number)]


def test_every_third_is_every_third() -> None:
    assert hit(Plan((Rule(CUT, every=3),)))[:3] == [3, 6, 9]


def test_counting_begins_at_the_first_one() -> None:
    assert hit(Plan((Rule(CUT, every=2, first=4, last=8),))) == [5, 7]


def test_a_chance_is_about_that_share_and_the_same_for_the_same_seed() -> None:
    plan = Plan((Rule(CUT, chance=0.1),), seed=7)

    assert hit(plan) == hit(Plan((Rule(CUT, chance=0.1),), seed=7))
    assert 60 < len(hit(plan)) < 140


def test_another_seed_draws_others() -> None:
    assert hit(Plan((Rule(CUT, chance=0.1),), seed=7)) != hit(Plan((Rule(CUT, chance=0.1),)))


def test_rules_draw_independently_of_each_other() -> None:
    """Else the second of two rules with the same chance would never come."""
    plan = Plan((Rule(CUT, chance=0.2), Rule(DELAY, chance=0.2)))

    met = [plan.choose(number) for number in THOUSAND]

    assert met.count(CUT) > 100
    assert met.count(DELAY) > 100


def test_the_first_rule_that_fits_counts() -> None:
    plan = Plan((Rule(Refuse(), every=2), Rule(CUT)))

    assert [plan.choose(number) for number in (1, 2, 3)] == [CUT, Refuse(), CUT]


@pytest.mark.parametrize(
    "wrong", [{"every": 0}, {"chance": 0}, {"chance": 1.1}, {"first": 0}, {"first": 3, "last": 2}]
)
def test_a_rule_that_can_never_fit_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Rule(CUT, **wrong)  # type: ignore[arg-type]
