"""Who serves both sides serves the one it is to serve, unless that leaves nobody for the other."""

from dataclasses import replace

import pytest

from pdgate.protocols.errors import NoInstance
from pdgate.protocols.instance import Role
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.policies.round_robin import RoundRobin
from pdgate.scheduling.scheduler import Scheduler
from tests.support.scripted import P0, chat, fleet

PREFILL, DECODE = frozenset({Role.PREFILL}), frozenset({Role.DECODE})


def both(count: int) -> Endpoints:
    return fleet(*(replace(P0, id=f"e{n}", role=Role.BOTH) for n in range(count)))


def serving(endpoints: Endpoints, role: Role) -> list[str]:
    return [endpoint.instance.id for endpoint in endpoints.eligible(None).up[role]]


def test_each_serves_its_side() -> None:
    endpoints = both(3)
    assert serving(endpoints, Role.PREFILL) == ["e0", "e1", "e2"]

    for name, sides in (("e0", PREFILL), ("e1", DECODE), ("e2", DECODE)):
        endpoints.assign(name, sides)

    assert serving(endpoints, Role.PREFILL) == ["e0"]
    assert serving(endpoints, Role.DECODE) == ["e1", "e2"]


def test_who_is_between_two_sides_gets_nothing() -> None:
    endpoints = both(3)
    endpoints.assign("e0", frozenset())

    assert serving(endpoints, Role.PREFILL) == ["e1", "e2"]
    assert serving(endpoints, Role.DECODE) == ["e1", "e2"]


def test_a_side_that_has_nobody_left_is_served_by_who_can() -> None:
    endpoints = both(3)
    for name, sides in (("e0", PREFILL), ("e1", DECODE), ("e2", DECODE)):
        endpoints.assign(name, sides)

    endpoints.mark_down("e0")

    assert serving(endpoints, Role.PREFILL) == ["e1", "e2"]


def test_nobody_is_its_own_peer_whatever_its_side() -> None:
    endpoints = both(2)
    scheduler = Scheduler(endpoints, RoundRobin(), RoundRobin(), RoundRobin())
    for name in ("e0", "e1"):
        endpoints.assign(name, DECODE)
    with scheduler.reserve(Role.PREFILL, chat()) as prefill:
        with scheduler.reserve(Role.DECODE, chat(), peer=prefill.instance) as decode:
            assert decode.instance.id != prefill.instance.id
        endpoints.mark_down("e1" if prefill.instance.id == "e0" else "e0")
        with pytest.raises(NoInstance):
            scheduler.reserve(Role.DECODE, chat(), peer=prefill.instance)


def test_a_role_that_allows_one_side_only_is_not_widened() -> None:
    endpoints = fleet(P0, replace(P0, id="d9", role=Role.DECODE))
    endpoints.assign("p0", DECODE)

    assert serving(endpoints, Role.DECODE) == ["d9"]
    assert serving(endpoints, Role.PREFILL) == ["p0"]
