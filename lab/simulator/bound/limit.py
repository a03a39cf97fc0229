"""Limit of a trace and a fleet: the least of the bounds, and the capacity that follows from it."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Final

from pdgate.lab.simulator.bound.needs import Need, Pools, needs, pools
from pdgate.lab.simulator.bound.prices import priced
from pdgate.lab.simulator.bound.windows import windowed
from pdgate.lab.simulator.trace import TraceCall, faster
from pdgate.lab.simulator.world import WorldPlan

SERVED: Final = 0.99
"""Share of the calls that can be in time at all, up to which load is within capacity."""

PIECES: Final = (1, 4, 16)
"""Into which a trace is cut; with more, what reaches from one into the next makes it looser."""

LEAST_CALLS: Final = 4
"""In a piece."""

PRECISION: Final = 0.01
"""Of a capacity."""

MOST_DOUBLINGS: Final = 20

ROUNDED: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Bound:
    """
    Attributes:
        calls: That come.
        possible: That could be in time alone: others are too long for the targets.
        in_time: At most, whatever the policy.
        in_time_lru: The same with one cache that gives up what was longest unused, as engines do: no
            bound, but what a policy may hope for that does not know which prompts come again.
    """

    calls: int
    possible: int
    in_time: int
    in_time_lru: int

    @property
    def goodput(self) -> float:
        """Share of all calls."""
        return self.in_time / self.calls

    @property
    def goodput_lru(self) -> float:
        return self.in_time_lru / self.calls


def bound(plan: WorldPlan, asks: Sequence[TraceCall]) -> Bound:
    """No run of that plan has more calls in time, with any policies, limits and outages."""
    found, of = needs(plan, asks), pools(plan)
    in_time = _most(found, of)
    lru = _most([need for need in needs(plan, asks, lru=True) if need.first <= of.window], of)
    return Bound(len(asks), len(found), in_time, min(in_time, lru))


def _most(found: Sequence[Need], of: Pools) -> int:
    most = windowed(found, of.reads, of.window)
    for pieces in PIECES:
        if len(found) >= pieces * LEAST_CALLS or pieces == 1:
            most = min(most, sum(priced(piece, of) for piece in _cut(found, pieces)))
    # What is added up in another order may be short of a whole number by a little.
    return min(len(found), floor(most + ROUNDED * (1 + most)))


def capacity(plan: WorldPlan, asks: Sequence[TraceCall]) -> float:
    """The highest speed, in times of the trace's own, at which the bound is SERVED; 0 if none is."""
    of = pools(plan)

    def within(speed: float) -> bool:
        found = needs(plan, faster(asks, speed))
        least = SERVED * len(found)
        # The quicker one first: mostly it is the less.
        return windowed(found, of.reads, of.window) >= least and _most(found, of) >= least

    low, high = 0.0, 1.0
    for _ in range(MOST_DOUBLINGS):
        if not within(high):
            break
        low, high = high, 2 * high
    else:
        return low
    if not low:
        for _ in range(MOST_DOUBLINGS):
            low = high / 2
            if within(low):
                break
            high = low
        else:
            return 0.0
    while high - low > PRECISION * low:
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle) else (low, middle)
    return low


def _cut(found: Sequence[Need], pieces: int) -> list[Sequence[Need]]:
    """Into as many of equal numbers of calls."""
    size = -(-len(found) // pieces) or 1
    return [found[begin : begin + size] for begin in range(0, len(found), size)]
