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

BOUNDED: Final = f"{QUEUED} for 15 s"
"""The same with `admission.wait_seconds`: who waits for longer is turned away."""

BOUNDED_SECONDS: Final = 15.0
"""Three targets, so that the last of those who are served have their first token within four."""

Found = dict[float, Summary]
"""Load -> what came of it."""


def plan_of(name: str) -> WorldPlan:
    if name in (QUEUED, BOUNDED):
        wait_seconds = BOUNDED_SECONDS if name == BOUNDED else 10.0**6
        limits = Limits(waiting=10**6, wait_seconds=wait_seconds, prefill_seconds=1.0)
        return WorldPlan(DEFAULT, DEFAULT, targets=TARGETS, limits=limits.in_gateway(TARGETS))
    return WorldPlan(name, name, targets=TARGETS)


def at_load(name: str, asks: Sequence[TraceCall], load: float) -> Summary:
    known = summary(run(plan_of(name), faster(asks, load), policy=load_any))
    print(f"{name} at {load:.3f}: {known.goodput:.1%}", file=sys.stderr, flush=True)
    return known
