"""How right engines are predicted, on simulated ones that get the calls of a trace.

    python -m benchmarks.predictions TRACE [--calls 4000] [--json FILE]

8 prefill and 8 decode engines of `pdgate simulate`; each line is a kind of engine, a policy for
prefill, and how many times as fast calls come as in the trace. `error` and `bias` are those on
/metrics (docs/operations/latency-prediction.md), the mean over the engines of a side at the end of the run:
of prefill until a prompt was read, of steps the time between two tokens. The same arguments give
the same figures.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from pdgate.lab.simulator.hardware import PRESETS
from pdgate.lab.simulator.trace import TraceCall, faster, read
from pdgate.lab.simulator.world import WorldPlan, run
from pdgate.protocols.call import Call
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.latency.accuracy import Accuracy
from pdgate.scheduling.policy import Policy, load
from pdgate.scheduling.policy_context import PolicyContext

CASES: Final = (
    ("8b", "round_robin", 1.0),
    ("8b", "least_loaded", 1.0),
    ("8b", "prefix_then_load", 1.0),
    ("8b", "prefix_then_load", 3.0),
    ("70b", "prefix_then_load", 0.3),
    ("70b", "prefix_then_load", 1.0),
)
"""Engines, policy, scale."""


@dataclass(frozen=True, slots=True)
class Row:
    """Of one case; errors and biases as shares of what was seen."""

    engines: str
    policy: str
    scale: float
    prefill_error: float
    prefill_bias: float
    step_error: float
    step_bias: float


class Watching(Policy):
    """Chooses as another policy does, and remembers from whom."""

    def __init__(self, policy: Policy) -> None:
        self.seen: dict[str, Endpoint] = {}
        self._policy = policy
        self.needs_prefixes = policy.needs_prefixes

    def choose(self, call: Call, endpoints: Sequence[Endpoint]) -> Endpoint:
        for endpoint in endpoints:
            self.seen[endpoint.instance.id] = endpoint
        return self._policy.choose(call, endpoints)


def measured(asks: Sequence[TraceCall], engines: str, policy: str, scale: float) -> Row:
    made: list[Watching] = []

    def watching(name: str, context: PolicyContext) -> Policy:
        made.append(Watching(load(name, context)))
        return made[-1]

    run(
        WorldPlan(policy, "least_loaded", hardware=PRESETS[engines]),
        faster(asks, scale),
        policy=watching,
    )
    prefill, decode = made[0].seen.values(), made[1].seen.values()
    return Row(
        engines,
        policy,
        scale,
        *_means([one.latency.prefill_accuracy for one in prefill]),
        *_means([one.latency.step_time.accuracy for one in decode]),
    )


def _means(several: Sequence[Accuracy]) -> tuple[float, float]:
    """Error and bias, of those that were compared."""
    compared = [one for one in several if one.compared]
    count = max(1, len(compared))
    error = sum(one.error for one in compared) / count
    return round(error, 3), round(sum(one.bias for one in compared) / count, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--calls", type=int, default=4000)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    asks = read(given.trace)[: given.calls]
    rows = []
    print("engines  policy            scale   prefill error  bias    step error  bias")
    for case in CASES:
        row = measured(asks, *case)
        rows.append(row)
        print(
            f"{row.engines:8} {row.policy:17} {row.scale:5.1f}   {row.prefill_error:13.2f}"
            f" {row.prefill_bias:+6.2f}  {row.step_error:10.2f} {row.step_bias:+6.2f}",
            flush=True,
        )
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()
