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

BOUNDED: Final = f"{DEFAULT}, 15 s at most"
"""The default policy with `admission.wait_seconds`: who waits for longer is turned away."""

AT_ENGINES: Final = f"{DEFAULT}, at engines"
"""The same with `admission.prefill_seconds` of 0: calls do not wait in the gateway."""

BOUNDED_SECONDS: Final = 15.0
"""Three targets, so that the last of those who are served have their first token within four."""

Found = dict[float, Summary]
"""Load -> what came of it."""


def plan_of(name: str) -> WorldPlan:
    if name in (DEFAULT, BOUNDED):
        given = {"wait_seconds": BOUNDED_SECONDS} if name == BOUNDED else {}
        limits = Limits.of(given, TARGETS, TARGETS)
        return WorldPlan(DEFAULT, DEFAULT, targets=TARGETS, limits=limits)
    policy = DEFAULT if name == AT_ENGINES else name
    return WorldPlan(policy, policy, targets=TARGETS)


def at_load(name: str, asks: Sequence[TraceCall], load: float) -> Summary:
    known = summary(run(plan_of(name), faster(asks, load), policy=load_any))
    print(f"{name} at {load:.3f}: {known.goodput:.1%}", file=sys.stderr, flush=True)
    return known
