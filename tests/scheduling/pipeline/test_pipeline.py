"""Filters, scorers, picker: what a pipeline makes of them."""

from collections import Counter
from collections.abc import Sequence
from math import nan
from random import Random

import pytest

from pdgate.protocols.call import Call
from pdgate.protocols.instance import Role
from pdgate.protocols.place import Place
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.pipeline import Best, Pipeline, PowerOfTwo, Softmax
from pdgate.scheduling.policy import Policy
from tests.support.fleets import at, fleet, prompt

CALL = prompt(100)


def even(call: Call, endpoint: Endpoint) -> bool:
    return int(endpoint.instance.id) % 2 == 0


def nobody(call: Call, endpoint: Endpoint) -> bool:
    return False


def late(call: Call, endpoint: Endpoint) -> float:
    return int(endpoint.instance.id) / 10


def first(call: Call, endpoint: Endpoint) -> float:
    return float(endpoint.instance.id == "0")


def alike(call: Call, endpoint: Endpoint) -> float:
    return 0.5


def test_the_most_preferred_of_the_kept_is_chosen() -> None:
    pipeline = Pipeline(filters=[even], scorers=[(1.0, late)], picker=Best())

    assert pipeline.choose(CALL, fleet(6)).instance.id == "4"


def test_weights_decide_between_words() -> None:
    among = fleet(6)
    light = Pipeline(scorers=[(1.0, late), (0.4, first)], picker=Best())
    heavy = Pipeline(scorers=[(1.0, late), (0.6, first)], picker=Best())

    assert light.choose(CALL, among).instance.id == "5"
    assert heavy.choose(CALL, among).instance.id == "0"


def test_a_filter_that_leaves_nobody_is_passed_over_and_counted() -> None:
    """A call goes to an engine that is full rather than to none; others still have their say."""
    pipeline = Pipeline(filters=[nobody, even], scorers=[(1.0, late)], picker=Best())

    assert pipeline.choose(CALL, fleet(6)).instance.id == "4"
    assert pipeline.passed_over == {"nobody": 1}


def test_another_policy_may_choose_where_a_filter_leaves_nobody() -> None:
    """Among all of them again: what an earlier filter left out, it may choose."""
    pipeline = Pipeline(
        filters=[even, nobody], scorers=[(1.0, first)], picker=Best(), otherwise=LastOfAll()
    )

    assert pipeline.choose(CALL, fleet(6)).instance.id == "5"
    assert pipeline.passed_over == {"nobody": 1}


class LastOfAll(Policy):
    def choose(self, call: Call, endpoints: Sequence[Endpoint]) -> Endpoint:
        return endpoints[-1]


def test_equals_share_the_calls() -> None:
    pipeline = Pipeline(scorers=[(1.0, alike)], picker=Best(Random(1)))
    among = fleet(4)

    chosen = Counter(pipeline.choose(CALL, among).instance.id for _ in range(400))

    assert set(chosen) == {"0", "1", "2", "3"}
    assert min(chosen.values()) > 60


def test_the_better_of_two_never_is_the_worst_of_three() -> None:
    pipeline = Pipeline(scorers=[(1.0, late)], picker=PowerOfTwo(Random(1)))
    among = fleet(3)

    assert {pipeline.choose(CALL, among).instance.id for _ in range(50)} == {"1", "2"}
    assert pipeline.choose(CALL, among[:1]) is among[0]


def test_a_cold_softmax_takes_the_best_and_a_hot_one_anybody() -> None:
    among = fleet(4)
    cold = Pipeline(scorers=[(1.0, late)], picker=Softmax(0.001, Random(1)))
    hot = Pipeline(scorers=[(1.0, late)], picker=Softmax(100.0, Random(1)))

    assert {cold.choose(CALL, among).instance.id for _ in range(50)} == {"3"}
    assert {hot.choose(CALL, among).instance.id for _ in range(200)} == {"0", "1", "2", "3"}


def test_softmax_gives_chances_by_the_exponent_of_the_difference() -> None:
    """A difference of one temperature is e times the chances."""
    among = fleet(2)
    pipeline = Pipeline(scorers=[(1.0, late)], picker=Softmax(0.1, Random(1)))

    chosen = Counter(pipeline.choose(CALL, among).instance.id for _ in range(4000))

    assert chosen["1"] / chosen["0"] == pytest.approx(2.718, rel=0.2)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_a_temperature_must_be_above_zero(temperature: float) -> None:
    with pytest.raises(ValueError, match="a temperature must be above 0"):
        Softmax(temperature)


def placed() -> list[Endpoint]:
    """Beside a peer on h0: on its host, in its rack, in its zone, far away."""
    places = Place("h0", "r0", "z0"), Place("h1", "r0", "z0"), Place("h2", "r1", "z0"), Place("h3")
    return [at(one, place) for one, place in zip(fleet(4, Role.DECODE), places, strict=True)]


def test_among_equals_the_nearest_to_the_peer_is_chosen() -> None:
    pipeline = Pipeline(scorers=[(1.0, alike)], picker=Best(), near=0.1)
    peer = at(fleet(1)[0], Place("h0", "r0", "z0")).instance
    among = placed()

    while among:
        nearest = among[0]
        assert pipeline.choose_beside(CALL, among, peer) is nearest
        among.remove(nearest)


def test_the_nearest_is_also_found_by_who_has_looked_at_the_same_before() -> None:
    """Where engines are is looked at once, and then known."""
    pipeline = Pipeline(scorers=[(1.0, alike)], picker=Best(), near=0.1)
    among = placed()
    peers = [at(fleet(1)[0], one.instance.place).instance for one in among]

    for _ in range(3):
        for peer, its in zip(peers, among, strict=True):
            assert pipeline.choose_beside(CALL, among, peer) is its


@pytest.mark.parametrize(
    ("places", "peer"),
    [
        ([Place("h0"), Place("h0")], Place("h0")),
        ([Place("h0"), Place("h1")], Place("h2")),
        ([Place("h0"), Place("h1")], Place()),
        ([Place("h0", "r", "z"), Place("h1", "r", "z")], Place("h2", "r", "z")),
    ],
)
def test_where_all_are_as_near_they_are_equals(places: list[Place], peer: Place) -> None:
    pipeline = Pipeline(scorers=[(1.0, alike)], picker=Best(Random(1)), near=0.1)
    among = [at(one, place) for one, place in zip(fleet(2, Role.DECODE), places, strict=True)]
    beside = at(fleet(1)[0], peer).instance

    chosen = Counter(pipeline.choose_beside(CALL, among, beside).instance.id for _ in range(400))

    assert 150 < chosen["0"] < 250


def no_number(call: Call, endpoint: Endpoint) -> float:
    return nan if endpoint.instance.id != "1" else 0.1


def never_a_number(call: Call, endpoint: Endpoint) -> float:
    return nan


def test_whose_score_is_no_number_is_not_the_best() -> None:
    assert (
        Pipeline(scorers=[(1.0, no_number)], picker=Best()).choose(CALL, fleet(3)).instance.id
        == "1"
    )


def test_somebody_is_chosen_where_no_score_is_a_number() -> None:
    among = fleet(3)

    assert Pipeline(scorers=[(1.0, never_a_number)], picker=Best()).choose(CALL, among) in among


def test_being_near_weighs_no_more_than_it_is_said_to() -> None:
    """The far one is preferred by 0.3, and the near one is nearer by 1."""
    peer = at(fleet(1)[0], Place("h0", "r0", "z0")).instance
    light = Pipeline(scorers=[(1.0, late)], picker=Best(), near=0.2)
    heavy = Pipeline(scorers=[(1.0, late)], picker=Best(), near=0.9)

    assert light.choose_beside(CALL, placed(), peer).instance.id == "3"
    assert heavy.choose_beside(CALL, placed(), peer).instance.id == "0"
