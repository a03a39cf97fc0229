"""Whom it matters to who is near, and that nobody is left out who is nearer than others."""

from itertools import product
from random import Random

from pdgate.protocols.instance import Role
from pdgate.protocols.place import Place
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.pipeline.shortlist import told_apart_by
from tests.support.fleets import at, fleet

PLACES = [Place(*names) for names in product(("", "a", "b"), ("", "a", "r"), ("", "a", "z"))]


def engines(places: list[Place]) -> list[Endpoint]:
    return [at(one, to) for one, to in zip(fleet(len(places), Role.DECODE), places, strict=True)]


def test_engines_of_one_host_are_told_apart_by_nothing() -> None:
    assert not told_apart_by(engines([Place("h", "r", "z"), Place("h", "r", "z")]))


def test_engines_with_hosts_of_their_own_are_told_apart_by_these() -> None:
    among = engines([Place("h0", "r", "z"), Place("h1", "r", "z")])

    assert told_apart_by(among) == {"h0", "h1"}


def test_to_a_place_that_is_in_none_of_the_names_all_are_as_near() -> None:
    draw = Random(1)
    as_near = 0
    for _ in range(2000):
        places = draw.choices(PLACES, k=draw.randrange(1, 4))
        names, peer = told_apart_by(engines(places)), draw.choice(PLACES)
        if names.isdisjoint((peer.host, peer.rack, peer.zone)):
            as_near += 1
            assert len({peer.distance(place) for place in places}) == 1
    assert as_near > 200
