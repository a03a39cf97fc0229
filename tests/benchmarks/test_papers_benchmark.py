"""Papers' experiments in the simulator: what a table of effective requests says."""

from dataclasses import replace
from random import Random

import pytest

from pdgate.lab.simulator.outcome import SimulatedOutcome
from pdgate.lab.simulator.synthetic import conversations
from pdgate.lab.simulator.trace import TraceCall, faster
from pdgate.lab.simulator.world import run
from pdgate.scheduling.policy_context import Targets

# It is not installed, and so is imported where a test needs it: the wheel's tests have none.
pytestmark = pytest.mark.source


def test_a_longer_threshold_never_makes_fewer_requests_effective() -> None:
    from benchmarks.papers.mooncake import effective, fleets

    asks = conversations(150, 3.0, Random(4))
    shares = {name: effective(plan, asks) for name, plan in fleets(4).items()}

    assert len(shares) == 5
    assert all(strict <= middle <= wide for strict, middle, wide in shares.values())
    assert all(0 < wide <= 1 for *_, wide in shares.values())


def test_the_table_names_each_fleet_at_each_speed() -> None:
    from benchmarks.papers.mooncake import table

    rows = table(conversations(40, 3.4, Random(1)), [1.0, 2.0], nodes=2).splitlines()

    assert rows[0] == "| calls a second | | 100 ms | 200 ms | 300 ms |"
    assert len(rows) == 2 + 2 * 5
    assert "| 1 prefill, 1 decode, `slo` |" in rows[2]


def test_a_call_is_in_time_by_the_token_that_prefill_makes() -> None:
    from benchmarks.papers.distserve import in_time

    one = SimulatedOutcome(TraceCall(1.0, 100, 11, ()), prefilled=1.2, first=2.0, ended=3.2, why="")

    assert in_time(one, Targets(0.25, 0.25))
    assert not in_time(one, Targets(0.15, 0.25))
    assert not in_time(one, Targets(0.25, 0.15))
    # Of engines that do both there is no token of prefill's.
    assert not in_time(replace(one, prefilled=None), Targets(0.25, 0.25))
    assert not in_time(replace(one, why="never ended"), Targets(0.25, 0.25))


def test_goodput_is_where_nine_of_ten_are_in_time() -> None:
    from benchmarks.papers import distserve

    (setting, *_) = distserve.SETTINGS
    asks = distserve.asks_of(setting, 150, Random(1))
    plan, gpus = distserve.fleets(setting)["apart, `slo`, at engines"]

    def share(rate: float) -> float:
        outcomes = run(plan, faster(asks, rate * gpus)).outcomes
        return sum(distserve.in_time(one, plan.targets) for one in outcomes) / len(outcomes)

    rate = distserve.goodput(plan, gpus, asks)

    assert share(rate) >= distserve.IN_TIME > share(1.2 * rate)


def test_each_setting_has_its_fleets_and_what_its_authors_found() -> None:
    from benchmarks.papers.distserve import SETTINGS, table

    rows = table(40, SETTINGS[:1]).splitlines()

    assert len(rows) == 2 + 4 + 1
    assert rows[-1].endswith("| DistServe, by its authors | | 4.6 |")
