"""Who changes sides ends its old work first, and nothing of it is broken off."""

from dataclasses import replace

from pdgate.gateway.adaptive.sides import PATIENCE_SECONDS, Sides
from pdgate.protocols.instance import Role
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.policy_context import Targets
from pdgate.scheduling.reservation import Reservation
from tests.support.clock import Clock
from tests.support.scripted import P0, fleet

PREFILL, DECODE, NEITHER = frozenset({Role.PREFILL}), frozenset({Role.DECODE}), frozenset[Role]()


class Scene:
    def __init__(self, *names: str, protocol: str = "vllm-nixl") -> None:
        records = [replace(P0, id=name, role=Role.BOTH, protocol=protocol) for name in names]
        self.endpoints: Endpoints = fleet(*records)
        self.clock = Clock(1000.0)
        self.sides = Sides(self.endpoints, Targets, self.clock)

    def serves(self, name: str) -> frozenset[Role] | None:
        endpoint = self.endpoints.get(name)
        assert endpoint is not None
        return endpoint.sides

    def word(self, name: str) -> str:
        endpoint = self.endpoints.get(name)
        assert endpoint is not None
        return self.sides.of(endpoint)

    def busy(self, name: str) -> Reservation:
        endpoint = self.endpoints.get(name)
        assert endpoint is not None
        return Reservation(endpoint, 10, reads=False)


def test_the_first_side_is_served_at_once() -> None:
    scene = Scene("e0")
    assert (scene.serves("e0"), scene.word("e0")) == (None, "both")

    with scene.busy("e0"):
        scene.sides.put("e0", Role.DECODE)

        assert (scene.serves("e0"), scene.word("e0")) == (DECODE, "decode")


def test_who_has_no_calls_changes_at_once() -> None:
    scene = Scene("e0")
    scene.sides.put("e0", Role.DECODE)

    scene.sides.put("e0", Role.PREFILL)

    assert scene.serves("e0") == PREFILL


def test_who_has_calls_gets_none_until_they_are_over() -> None:
    scene = Scene("e0")
    scene.sides.put("e0", Role.DECODE)
    with scene.busy("e0"):
        scene.sides.put("e0", Role.PREFILL)
        assert (scene.serves("e0"), scene.word("e0")) == (NEITHER, "turning")
        (engine,) = scene.sides.engines()
        assert (engine.side, engine.turning) == (Role.PREFILL, True)
    assert scene.serves("e0") == NEITHER

    scene.sides.settle()

    assert (scene.serves("e0"), scene.word("e0")) == (PREFILL, "prefill")


def test_calls_that_last_for_ever_do_not_keep_it() -> None:
    scene = Scene("e0")
    scene.sides.put("e0", Role.DECODE)
    with scene.busy("e0"):
        scene.sides.put("e0", Role.PREFILL)
        scene.clock.now += PATIENCE_SECONDS

        scene.sides.settle()

        assert scene.serves("e0") == PREFILL


def test_who_comes_back_under_its_id_is_somebody_new() -> None:
    scene = Scene("e0")
    scene.sides.put("e0", Role.DECODE)
    scene.endpoints.remove("e0")
    scene.sides.settle()
    scene.endpoints.put(replace(P0, id="e0", role=Role.BOTH))

    assert scene.sides.decided() == {}
    assert scene.serves("e0") is None


def test_a_record_that_was_replaced_keeps_its_side() -> None:
    scene = Scene("e0")
    scene.sides.put("e0", Role.DECODE)
    scene.endpoints.remove("e0")
    scene.endpoints.put(replace(P0, id="e0", role=Role.BOTH, url="http://elsewhere:1"))

    scene.sides.settle()

    assert scene.serves("e0") == DECODE


def test_who_announces_one_role_is_left_to_it() -> None:
    scene = Scene("e0")
    scene.sides.put("e0", Role.DECODE)
    scene.endpoints.put(replace(P0, id="e0", role=Role.PREFILL))

    scene.sides.settle()

    assert scene.serves("e0") is None
    assert [(one.side, one.movable) for one in scene.sides.engines()] == [(Role.PREFILL, False)]


def test_engines_that_take_from_a_queue_are_left_alone() -> None:
    assert Scene("e0", protocol="decode-first").sides.engines() == []


def test_those_that_get_no_calls_are_not_there() -> None:
    scene = Scene("e0", "e1")
    scene.endpoints.drain(["e0"])

    assert [one.id for one in scene.sides.engines()] == ["e1"]
