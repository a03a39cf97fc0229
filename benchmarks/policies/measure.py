"""One policy at one load.

A module of its own, as processes of a pool import what they run.
"""

import sys
from collections.abc import Sequence
from typing import Final

from benchmarks.peers import load_any
from pdgate.lab.simulator.summary import Summary, summary
from pdgate.lab.simulator.trace import TraceCall, faster
from pdgate.lab.simulator.world import WorldPlan, run
from pdgate.scheduling.admission import Limits
from pdgate.scheduling.policy import DEFAULT
from pdgate.scheduling.policy_context import Targets

TARGETS = Targets(ttft_seconds=5.0, tpot_seconds=0.025)

QUEUED: Final = f"{DEFAULT}, queued"
"""The default policy with `admission.prefill_seconds`, and nobody turned away."""

QUEUE: Final = Limits(waiting=10**6, wait_seconds=10**6, prefill_seconds=1.0).in_gateway(TARGETS)

Found = dict[float, Summary]
"""Load -> what came of it."""


def plan_of(name: str) -> WorldPlan:
    if name == QUEUED:
        return WorldPlan(DEFAULT, DEFAULT, targets=TARGETS, limits=QUEUE)
    return WorldPlan(name, name, targets=TARGETS)


def at_load(name: str, asks: Sequence[TraceCall], load: float) -> Summary:
    known = summary(run(plan_of(name), faster(asks, load), policy=load_any))
    print(f"{name} at {load:.3f}: {known.goodput:.1%}", file=sys.stderr, flush=True)
    return known
