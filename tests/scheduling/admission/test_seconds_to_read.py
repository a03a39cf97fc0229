"""How soon a prompt would be read is known of the engine that would be soonest."""

from dataclasses import replace

import pytest

from pdgate.protocols.instance import Role
from pdgate.scheduling.admission import seconds_to_read
from pdgate.scheduling.instances import Instances
from tests.support.scripted import D0, P0, P1, fleet


def reads(instances: Instances, name: str, tokens_per_second: int) -> None:
    candidate = instances.get(name)
    assert candidate is not None
    for tokens in (500, 1000, 1500) * 3:
        candidate.latency.has_read(tokens, 0.0, tokens / tokens_per_second, None)


def test_the_soonest_engine_counts_with_what_waits_there() -> None:
    instances = fleet(P0, P1, D0)
    reads(instances, "p0", 1000)
    reads(instances, "p1", 500)
    lineup = instances.lineup(None)
    assert seconds_to_read(lineup, 2000) == pytest.approx(2, rel=0.1)

    lineup.up[Role.PREFILL][0].unread_tokens = 10_000

    assert seconds_to_read(lineup, 2000) == pytest.approx(4, rel=0.1)


def test_nobody_knows_before_engines_have_shown_it() -> None:
    assert seconds_to_read(fleet(P0, D0).lineup(None), 10) is None


def test_plain_engines_read_for_themselves() -> None:
    instances = fleet(replace(P0, id="e0", role=Role.PLAIN))
    reads(instances, "e0", 1000)

    assert seconds_to_read(instances.lineup(None), 3000) == pytest.approx(3, rel=0.1)
