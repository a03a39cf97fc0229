"""Mooncake's effective request capacity: share of calls with a first token within 30 s and others within a threshold.

The paper has it of a conversation trace with a dummy 70B model on 16 nodes of eight GPUs, half of them prefill, against
vLLM on as many, at thresholds of 100, 200 and 300 ms between tokens. Here nodes are simulated ones with the figures of
a 70B model ("70b"), calls are the same trace, and vLLM is 16 engines that do both, in turn or by the default policy.
KV is what an engine's GPUs hold: there is no store of DRAM for all of them, which is most of that paper's gain.

Source: Qin et al., Mooncake (FAST 2025), 5.2, by a description of it; the paper itself was not at hand.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from pdgate.lab.simulator.hardware import PRESETS
from pdgate.lab.simulator.trace import TraceCall, faster
from pdgate.lab.simulator.world import WorldPlan, run
from pdgate.scheduling.admission import Limits
from pdgate.scheduling.disaggregation import Never
from pdgate.scheduling.policy import DEFAULT
from pdgate.scheduling.policy_context import Targets

TTFT_SECONDS: Final = 30.0
TBT_SECONDS: Final = (0.1, 0.2, 0.3)
TARGETS: Final = Targets(TTFT_SECONDS, TBT_SECONDS[0])
"""What policies are told: the strictest."""

NODES: Final = 16
WAITS: Final = Limits.of({}, TARGETS, TARGETS)
"""As where these targets are set."""


def fleets(nodes: int = NODES) -> Mapping[str, WorldPlan]:
    """By what a table calls them; each has as many nodes."""
    half, hardware = nodes // 2, PRESETS["70b"]
    apart = WorldPlan(prefills=half, decodes=half, hardware=hardware, targets=TARGETS)
    together = replace(apart, prefills=0, decodes=0, both=nodes, rule=Never)
    split = f"{half} prefill, {half} decode"
    return {
        f"{split}, `{DEFAULT}`": replace(apart, limits=WAITS),
        f"{split}, `{DEFAULT}`, at engines": apart,
        f"{nodes} that do both, `{DEFAULT}`": replace(together, limits=WAITS),
        f"{nodes} that do both, `{DEFAULT}`, at engines": together,
        f"{nodes} that do both, in turn": replace(
            together, prefill_policy="round_robin", decode_policy="round_robin"
        ),
    }


def effective(plan: WorldPlan, asks: Sequence[TraceCall]) -> list[float]:
    """Of all calls, for each threshold."""
    outcomes = run(plan, asks).outcomes
    return [
        sum(one.good(Targets(TTFT_SECONDS, tbt)) for one in outcomes) / len(outcomes)
        for tbt in TBT_SECONDS
    ]


def table(asks: Sequence[TraceCall], scales: Sequence[float], nodes: int = NODES) -> str:
    """As Markdown."""
    per_second = (len(asks) - 1) / (asks[-1].at - asks[0].at)
    thresholds = " | ".join(f"{1000 * tbt:.0f} ms" for tbt in TBT_SECONDS)
    lines = [f"| calls a second | | {thresholds} |", "|--:|---|" + "--:|" * len(TBT_SECONDS)]
    for scale in scales:
        for name, plan in fleets(nodes).items():
            shares = " | ".join(f"{share:.1%}" for share in effective(plan, faster(asks, scale)))
            lines.append(f"| {scale * per_second:.1f} | {name} | {shares} |")
    return "\n".join(lines)
