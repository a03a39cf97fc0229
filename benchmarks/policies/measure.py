"""One policy at one load, and at as many as it takes to find its capacity.

A module of its own, as processes of a pool import what they run.
"""

import sys
from collections.abc import Sequence

from benchmarks.peers import load_any
from benchmarks.policies.capacity import capacity
from pdgate.lab.simulator.summary import Summary, summary
from pdgate.lab.simulator.trace import Ask, faster
from pdgate.lab.simulator.world import Plan, run
from pdgate.scheduling.policy_context import Targets

TARGETS = Targets(ttft_seconds=5.0, tpot_seconds=0.025)

Found = dict[float, Summary]
"""Load -> what came of it."""


def search(name: str, asks: Sequence[Ask]) -> tuple[float, Found]:
    """A policy's capacity, and what was found on the way."""
    found: Found = {}

    def good(load: float) -> float:
        found[load] = at_load(name, asks, load)
        return found[load].goodput

    return capacity(good), found


def at_load(name: str, asks: Sequence[Ask], load: float) -> Summary:
    plan = Plan(prefill_policy=name, decode_policy=name, targets=TARGETS)
    known = summary(run(plan, faster(asks, load), policy=load_any))
    print(f"{name} at {load:.3f}: {known.goodput:.1%}", file=sys.stderr, flush=True)
    return known
