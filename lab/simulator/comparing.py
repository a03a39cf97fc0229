"""Comparison of several plans over the same calls, one after the other or each in a process."""

import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context

from pdgate.lab.simulator.trace import TraceCall, faster
from pdgate.lab.simulator.world import Loads, Ran, WorldPlan, run
from pdgate.scheduling.policy import load


@dataclass(frozen=True, slots=True)
class Case:
    """
    Attributes:
        policy: What it is called in tables.
        scale: How many times as fast calls come as in the trace.
    """

    policy: str
    scale: float
    plan: WorldPlan


def cases(plans: Mapping[str, WorldPlan], scales: Sequence[float]) -> list[Case]:
    return [Case(name, scale, plan) for scale in scales for name, plan in plans.items()]


def run_all(
    several: Sequence[Case],
    asks: Sequence[TraceCall],
    *,
    processes: int = 1,
    policy: Loads = load,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Ran]:
    """Run all, in the order of the cases. `progress`: called with calls that are over.

    With several processes `policy` must be a function of a module, as they import it.
    """
    if processes == 1 or len(several) == 1:
        return [
            run(case.plan, faster(asks, case.scale), policy=policy, progress=progress)
            for case in several
        ]
    # A fork would inherit whatever threads and locks the caller has.
    with ProcessPoolExecutor(
        min(processes, len(several)),
        get_context("spawn"),
        # Ctrl-C reaches all of them, and what there is to say of it this process says.
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_DFL),
    ) as pool:
        under_way = [pool.submit(_run, case, asks, policy) for case in several]
        try:
            for _ in as_completed(under_way):
                progress(len(asks))
            return [one.result() for one in under_way]
        finally:
            pool.shutdown(cancel_futures=True)


def _run(case: Case, asks: Sequence[TraceCall], policy: Loads) -> Ran:
    return run(case.plan, faster(asks, case.scale), policy=policy)
