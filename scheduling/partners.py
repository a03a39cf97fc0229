"""Worth of the other half of a call, wherever its first half went.

A pair is chosen together where engines have said where they run: the engine that reads the prompt
adds to its own score that of the best engine that could answer beside it, nearness included. The
best of all pairs is found without looking at each:

    worth of a place = the most of   the best of all
                                     the best of its zone    + near * 1/3
                                     the best of its rack    + near * 2/3
                                     the best of its host    + near
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from pdgate.protocols.instance import Instance
from pdgate.protocols.place import FAR, Distance
from pdgate.scheduling.decision_trace import Weighed
from pdgate.scheduling.endpoint import Endpoint

_Key = tuple[str, str, str, str]

_NOBODY: Final = (-1.0, "")


class Partners:
    """Built for one call, of the endpoints for its other half and how good each is.

    Attributes:
        near: What it is worth to be on one host, above 0.
    """

    __slots__ = ("_best", "near")

    def __init__(self, scored: Iterable[tuple[Endpoint, float]], near: float) -> None:
        """`scored`: 0..1, the more the better."""
        self.near = near
        self._best: dict[_Key, tuple[float, str, float]] = {}
        for endpoint, score in scored:
            instance = endpoint.instance
            for key, _ in _keys(instance):
                self._add(key, score, instance.id)

    def worth(self, one: Instance) -> float:
        """What the other half of the best pair with this one adds; 0 if there is none."""
        most = 0.0
        for key, distance in _keys(one):
            best = self._best.get(key)
            if best is None:
                continue
            score, whose, next_best = best
            if whose == one.id:
                # An engine that could be either half is not both.
                score = next_best
            if score >= 0:
                most = max(most, score + self.near * (1 - distance / FAR))
        return most

    def told(
        self, said: Iterable[Weighed], endpoints: Sequence[Endpoint], of_worth: float
    ) -> list[Weighed]:
        """What a policy says of each, in this order, with what the best other half adds to its score.

        `of_worth`: What the score has for each bit of worth.
        """
        told = []
        for one, endpoint in zip(said, endpoints, strict=True):
            worth = self.worth(endpoint.instance)
            score = None if one.score is None else one.score + of_worth * worth
            why = f"{one.why}; the best decode engine for it is worth {worth:.3f}"
            told.append(replace(one, score=score, why=why))
        return told

    def _add(self, key: _Key, score: float, whose: str) -> None:
        first, who, second = self._best.get(key, (*_NOBODY, -1.0))
        if score > first:
            self._best[key] = score, whose, first
        elif score > second:
            self._best[key] = first, who, score


def _keys(one: Instance) -> Iterable[tuple[_Key, Distance]]:
    """An instance that shares the first is at most so far away."""
    speaks, place = one.speaks, one.place
    yield (speaks, "", "", ""), FAR
    if place.zone:
        yield (speaks, place.zone, "", ""), Distance.SAME_ZONE
    if place.rack:
        yield (speaks, place.zone, place.rack, ""), Distance.SAME_RACK
    if place.host:
        yield (speaks, "", "", place.host), Distance.SAME_HOST
