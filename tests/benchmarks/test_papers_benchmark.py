"""Papers' experiments in the simulator: what a table of effective requests says."""

from random import Random

import pytest

from pdgate.lab.simulator.synthetic import conversations

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
