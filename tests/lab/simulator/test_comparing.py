"""Several plans, each in a process of its own."""

import signal

from pdgate.lab.simulator.comparing import cases, run_all
from pdgate.lab.simulator.trace import TraceCall
from pdgate.lab.simulator.world import WorldPlan
from pdgate.scheduling.policy import Policy, load
from pdgate.scheduling.policy_context import PolicyContext

ASKS = [TraceCall(0.0, 64, 4, ()), TraceCall(0.1, 64, 4, ())]


def where_ctrl_c_just_ends_it(name: str, context: PolicyContext) -> Policy:
    assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    return load(name, context)


def test_ctrl_c_ends_the_processes_without_a_word_of_each() -> None:
    several = cases(
        {"a": WorldPlan(prefills=1, decodes=1), "b": WorldPlan(prefills=1, decodes=1)}, [1.0]
    )

    ran = run_all(several, ASKS, processes=2, policy=where_ctrl_c_just_ends_it)

    assert len(ran) == 2
