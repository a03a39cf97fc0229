"""The benchmark of the rules runs, and draws what it has measured."""

from xml.etree import ElementTree

import pytest

# It is not installed, and so is imported where a test needs it: the wheel's tests have none.
pytestmark = pytest.mark.source


def test_every_mix_has_the_share_of_long_prompts_that_it_says() -> None:
    from benchmarks.disaggregation import load
    from benchmarks.disaggregation.rounds import MIXES

    for mix in MIXES:
        prompts = load.lengths(20, mix, seed=1)

        assert prompts.count(load.LONG_BYTES) == 20 * mix
        assert prompts == load.lengths(20, mix, seed=1)


@pytest.mark.slow
def test_every_rule_is_measured_and_drawn() -> None:
    from benchmarks.disaggregation import chart, load, report
    from benchmarks.disaggregation.fleet import RULES, fleet
    from benchmarks.disaggregation.rounds import MIXES, RATIO, Plan, measure

    with fleet() as gateways:
        figures = measure(gateways, Plan(rounds=1, calls=load.CLIENTS))

    for mixes in figures.values():
        for rules in mixes.values():
            assert all(rules[rule] > 0 for rule in RULES)
            better = min(rules["always"], rules["never"])
            assert rules[RATIO] == pytest.approx(rules["auto"] / better)
    assert report.table(figures).count("\n") == 1 + len(figures) * len(MIXES)
    drawn = ElementTree.fromstring(chart.svg(figures))
    lines = drawn.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == len(RULES) * len(chart.PANELS)
