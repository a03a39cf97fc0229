"""Plan of a fleet: the fewest prefill and decode engines with which nearly all calls of a trace are in time.

    least of each side       what calls take of it at least (bound/needs.py), over the time in which they come
    too few                  one more of either side is tried, and the side stays that has more calls in time
    enough                   one less of either side is tried, until that is too few on both

Each is a whole simulation with the default policy, with which calls wait in the gateway for the targets, so that a queue at one engine is not taken for a lack of engines.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, gcd
from typing import Final

from pdgate.lab.simulator.bound.needs import needs
from pdgate.lab.simulator.trace import TraceCall
from pdgate.lab.simulator.world import WorldPlan, run

GROWS: Final = 8
"""Of so many engines of a side one more is tried at a time."""


@dataclass(frozen=True, slots=True)
class Tried:
    """
    Attributes:
        in_time: Share of the calls that are short enough to be in time at all.
    """

    prefills: int
    decodes: int
    in_time: float


@dataclass(frozen=True, slots=True)
class Planned:
    """
    Attributes:
        enough: The smallest that was found; None if even the most engines are too few.
        prefill_load, decode_load: Engines that would be at work all the time, if nothing ever waited.
        tried: All of them, in this order.
    """

    enough: Tried | None
    prefill_load: float
    decode_load: float
    tried: Sequence[Tried]

    @property
    def ratio(self) -> str:
        if self.enough is None:
            return ""
        common = gcd(self.enough.prefills, self.enough.decodes)
        return f"{self.enough.prefills // common}:{self.enough.decodes // common}"

    def reason(self) -> str:
        load = (
            f"reading takes {self.prefill_load:.1f} prefill engines all the time, and answering"
            f" {self.decode_load:.1f} decode engines"
        )
        if self.enough is None:
            best = max(self.tried, key=lambda one: one.in_time)
            return f"{load}; with {best.prefills} and {best.decodes} {best.in_time:.1%} are in time"
        less = [
            f"with one {side} engine less {one.in_time:.1%}"
            for side, prefills, decodes in (("prefill", 1, 0), ("decode", 0, 1))
            for one in self.tried
            if (one.prefills, one.decodes)
            == (self.enough.prefills - prefills, self.enough.decodes - decodes)
        ]
        return "; ".join([load, f"{self.enough.in_time:.1%} are in time", *less])


def planned(
    base: WorldPlan,
    asks: Sequence[TraceCall],
    wanted: float,
    most: int,
    progress: Callable[[Tried], None] = lambda tried: None,
) -> Planned:
    """`most`: engines of each side. Raises ValueError if no call is short enough to be in time."""
    calls = needs(base, asks, lru=True)
    if not calls:
        raise ValueError(
            "no call is short enough to be in time: every target is missed by an idle engine"
        )
    seconds = max(asks[-1].at - asks[0].at, base.targets.ttft_seconds)
    prefill_load = sum(need.first for need in calls) / seconds
    decode_load = sum(need.decode for need in calls) / seconds
    known: dict[tuple[int, int], Tried] = {}

    def at(prefills: int, decodes: int) -> Tried:
        found = known.get((prefills, decodes))
        if found is None:
            ran = run(replace(base, prefills=prefills, decodes=decodes), asks)
            good = sum(outcome.good(base.targets) for outcome in ran.outcomes)
            found = known[prefills, decodes] = Tried(prefills, decodes, good / len(calls))
            progress(found)
        return found

    now = at(min(most, max(1, ceil(prefill_load))), min(most, max(1, ceil(decode_load))))
    while now.in_time < wanted:
        more = [
            at(min(most, now.prefills + ceil(now.prefills / GROWS)), now.decodes),
            at(now.prefills, min(most, now.decodes + ceil(now.decodes / GROWS))),
        ]
        better = max(more, key=lambda one: (one.in_time, one.prefills + one.decodes))
        if better == now:
            both = at(more[0].prefills, more[1].decodes)
            if both == now:
                return Planned(None, prefill_load, decode_load, list(known.values()))
            better = both
        now = better
    while True:
        less = [
            at(prefills, decodes)
            for prefills, decodes in (
                (now.prefills - 1, now.decodes),
                (now.prefills, now.decodes - 1),
            )
            if min(prefills, decodes) > 0
        ]
        enough = [one for one in less if one.in_time >= wanted]
        if not enough:
            return Planned(now, prefill_load, decode_load, list(known.values()))
        now = max(enough, key=lambda one: one.in_time)
