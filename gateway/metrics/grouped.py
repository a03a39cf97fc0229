"""Tallies of several routes, or of several models, as one. Only when metrics are asked for."""

from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

from pdgate.gateway.metrics.tally import Tally

Group = TypeVar("Group", bound=Hashable)

Tallies = Mapping[tuple[str, str, str], Tally]
"""(protocol, model, route) -> what was counted."""


def by_model(tallies: Tallies) -> dict[tuple[str, str], Tally]:
    """By protocol and model, whatever the route."""
    return grouped(tallies, lambda protocol, model, _: (protocol, model))


def grouped(tallies: Tallies, group: Callable[[str, str, str], Group]) -> dict[Group, Tally]:
    """One that is alone in its group is not copied, as most are: a model has one route or two."""
    groups: dict[Group, list[Tally]] = {}
    for key, tally in tallies.items():
        groups.setdefault(group(*key), []).append(tally)
    return {key: among[0] if len(among) == 1 else together(among) for key, among in groups.items()}


def together(tallies: list[Tally]) -> Tally:
    """Their rows have been added up."""
    sum_ = Tally()
    for one in tallies:
        for path_and_outcome, calls in one.outcomes.items():
            sum_.outcomes[path_and_outcome] += calls
        for counts, more in (
            (sum_.handovers, one.handovers),
            (sum_.breaks, one.breaks),
            (sum_.tokens, one.tokens),
        ):
            for name, count in more.items():
                counts[name] += count
        for name, histogram in one.seconds.items():
            sum_.seconds[name].join(histogram)
        sum_.itl.join(one.itl)
    return sum_
