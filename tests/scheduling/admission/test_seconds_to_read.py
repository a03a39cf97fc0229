"""How soon a prompt would be read is known of the engine that would be soonest."""

from dataclasses import replace

import pytest

from pdgate.protocols.instance import Role
from pdgate.scheduling.admission import seconds_to_read
from pdgate.scheduling.endpoints import Endpoints
from tests.support.scripted import D0, P0, P1, fleet


def reads(endpoints: Endpoints, name: str, tokens_per_second: int) -> None:
    endpoint = endpoints.get(name)
    assert endpoint is not None
    for tokens in (500, 1000, 1500) * 3:
        endpoint.latency.has_read(tokens, 0.0, tokens / tokens_per_second, None)


def test_the_soonest_engine_counts_with_what_waits_there() -> None:
    endpoints = fleet(P0, P1, D0)
    reads(endpoints, "p0", 1000)
    reads(endpoints, "p1", 500)
    eligible = endpoints.eligible(None)
    assert seconds_to_read(eligible, 2000) == pytest.approx(2, rel=0.1)

    eligible.up[Role.PREFILL][0].unread_tokens = 10_000

    assert seconds_to_read(eligible, 2000) == pytest.approx(4, rel=0.1)


def test_nobody_knows_before_engines_have_shown_it() -> None:
    assert seconds_to_read(fleet(P0, D0).eligible(None), 10) is None


def test_plain_engines_read_for_themselves() -> None:
    endpoints = fleet(replace(P0, id="e0", role=Role.PLAIN))
    reads(endpoints, "e0", 1000)

    assert seconds_to_read(endpoints.eligible(None), 3000) == pytest.approx(3, rel=0.1)
