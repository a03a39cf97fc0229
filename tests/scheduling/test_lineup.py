"""Who serves both sides serves the one it is to serve, unless that leaves nobody for the other."""

from dataclasses import replace

import pytest

from pdgate.protocols.errors import NoInstance
from pdgate.protocols.instance import Role
from pdgate.scheduling.instances import Instances
from pdgate.scheduling.policies.round_robin import RoundRobin
from pdgate.scheduling.scheduler import Scheduler
from tests.support.scripted import P0, chat, fleet

PREFILL, DECODE = frozenset({Role.PREFILL}), frozenset({Role.DECODE})


def both(count: int) -> Instances:
    return fleet(*(replace(P0, id=f"e{n}", role=Role.BOTH) for n in range(count)))


def serving(instances: Instances, role: Role) -> list[str]:
    return [candidate.instance.id for candidate in instances.lineup(None).up[role]]


def test_each_serves_its_side() -> None:
    instances = both(3)
    assert serving(instances, Role.PREFILL) == ["e0", "e1", "e2"]

    for name, sides in (("e0", PREFILL), ("e1", DECODE), ("e2", DECODE)):
        instances.assign(name, sides)

    assert serving(instances, Role.PREFILL) == ["e0"]
    assert serving(instances, Role.DECODE) == ["e1", "e2"]


def test_who_is_between_two_sides_gets_nothing() -> None:
    instances = both(3)
    instances.assign("e0", frozenset())

    assert serving(instances, Role.PREFILL) == ["e1", "e2"]
    assert serving(instances, Role.DECODE) == ["e1", "e2"]


def test_a_side_that_has_nobody_left_is_served_by_who_can() -> None:
    instances = both(3)
    for name, sides in (("e0", PREFILL), ("e1", DECODE), ("e2", DECODE)):
        instances.assign(name, sides)

    instances.mark_down("e0")

    assert serving(instances, Role.PREFILL) == ["e1", "e2"]


def test_nobody_is_its_own_peer_whatever_its_side() -> None:
    instances = both(2)
    scheduler = Scheduler(instances, RoundRobin(), RoundRobin(), RoundRobin())
    for name in ("e0", "e1"):
        instances.assign(name, DECODE)
    with scheduler.reserve(Role.PREFILL, chat()) as prefill:
        with scheduler.reserve(Role.DECODE, chat(), peer=prefill.instance) as decode:
            assert decode.instance.id != prefill.instance.id
        instances.mark_down("e1" if prefill.instance.id == "e0" else "e0")
        with pytest.raises(NoInstance):
            scheduler.reserve(Role.DECODE, chat(), peer=prefill.instance)


def test_a_role_that_allows_one_side_only_is_not_widened() -> None:
    instances = fleet(P0, replace(P0, id="d9", role=Role.DECODE))
    instances.assign("p0", DECODE)

    assert serving(instances, Role.DECODE) == ["d9"]
    assert serving(instances, Role.PREFILL) == ["p0"]
