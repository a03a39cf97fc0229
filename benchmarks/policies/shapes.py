"""Policies on traces that are made up, each at its own capacity: other reuse, lengths and bursts."""

from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from random import Random
from typing import Final

from benchmarks.policies.measure import AT_ENGINES, BOUNDED, at_load, plan_of
from pdgate.lab.simulator.bound import Bound, bound, capacity
from pdgate.lab.simulator.summary import Summary
from pdgate.lab.simulator.synthetic import SHAPES, conversations
from pdgate.lab.simulator.trace import TraceCall, faster
from pdgate.scheduling.policy import DEFAULT

SEED: Final = 11
PER_SECOND: Final = 3.4
SHOWN: Final = (DEFAULT, BOUNDED, AT_ENGINES, "prefix_then_load", "lmetric")


@dataclass(frozen=True, slots=True)
class OfShape:
    """
    Attributes:
        per_second: Calls, at capacity.
        found: Policy -> what came of it there.
    """

    per_second: float
    limit: Bound
    found: Mapping[str, Summary]


def of_shapes(pool: Executor, calls: int) -> dict[str, OfShape]:
    traces = {
        name: conversations(calls, PER_SECOND, Random(SEED), shape)
        for name, shape in SHAPES.items()
    }
    limits = {name: pool.submit(limit_of, asks) for name, asks in traces.items()}
    loads = {name: one.result() for name, one in limits.items()}
    runs = {
        (name, policy): pool.submit(at_load, policy, asks, loads[name][0])
        for name, asks in traces.items()
        for policy in SHOWN
    }
    return {
        name: OfShape(
            (calls - 1) / (asks[-1].at - asks[0].at) * loads[name][0],
            loads[name][1],
            {policy: runs[name, policy].result() for policy in SHOWN},
        )
        for name, asks in traces.items()
    }


def limit_of(asks: list[TraceCall]) -> tuple[float, Bound]:
    most = capacity(plan_of(DEFAULT), asks)
    return most, bound(plan_of(DEFAULT), faster(asks, most))
