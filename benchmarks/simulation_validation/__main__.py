"""python -m benchmarks.simulation_validation [--calls N] [--per-second X] [--slow-motion X] [--policy NAME]

Exits with 1 if a figure is further off than ALLOWED.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from benchmarks.simulation_validation.asking import Seen, replay
from benchmarks.simulation_validation.calibration import calibrated
from benchmarks.simulation_validation.fleet import fleet
from benchmarks.simulation_validation.piece import Call, piece
from pdgate.lab.simulator.spread import percentile
from pdgate.lab.simulator.summary import summary
from pdgate.lab.simulator.trace import BadTrace, read
from pdgate.lab.simulator.world import WorldPlan, run

TRACE = Path(__file__).parents[3] / "shared/traces/conversation_trace.jsonl"
ALLOWED: Final = 0.15

Figures = Mapping[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation_validation")
    parser.add_argument("--trace", type=Path, default=TRACE)
    parser.add_argument("--calls", type=int, default=120)
    parser.add_argument("--per-second", type=float, default=3.0, help="without slow motion")
    parser.add_argument("--slow-motion", type=float, default=1.0)
    parser.add_argument("--policy", default="round_robin", help="of both, for both roles")
    parser.add_argument("--prefills", type=int, default=2)
    parser.add_argument("--decodes", type=int, default=2)
    asked = parser.parse_args()
    try:
        asks = read(asked.trace)
    except BadTrace as error:
        sys.exit(str(error))
    calls = piece(asks, asked.calls, asked.per_second / asked.slow_motion)
    load = os.getloadavg()[0]
    with fleet(asked.policy, asked.prefills, asked.decodes, asked.slow_motion) as running:
        hardware = asyncio.run(calibrated(running, asked.slow_motion))
        print("calibrated:", asdict(hardware), file=sys.stderr, flush=True)
        seen = asyncio.run(replay(running.gateway, calls))
    plan = WorldPlan(asked.policy, asked.policy, asked.prefills, asked.decodes, hardware)
    real, simulated = figures_of(seen), simulate(plan, calls)
    print(f"load average {load:.1f} before, {os.getloadavg()[0]:.1f} after\n")
    print(table(real, simulated))
    sys.exit(any(abs(simulated[name] / real[name] - 1) > ALLOWED for name in real))


def figures_of(seen: Sequence[Seen]) -> Figures:
    """In milliseconds."""
    figures = {}
    for name, values in (
        ("TTFT", sorted(one.ttft for one in seen)),
        ("TPOT", sorted(one.tpot for one in seen)),
    ):
        figures[f"{name} p50"] = 1000 * percentile(values, 0.5)
        figures[f"{name} p90"] = 1000 * percentile(values, 0.9)
    return figures


def simulate(plan: WorldPlan, calls: Sequence[Call]) -> Figures:
    ran = run(plan, [call.ask for call in calls])
    lost = summary(ran).lost
    if lost:
        raise RuntimeError(f"simulated calls were lost: {lost}")
    return figures_of([Seen(one.ttft or 0.0, one.tpot or 0.0) for one in ran.outcomes])


def table(real: Figures, simulated: Figures) -> str:
    lines = ["| | measured, ms | simulated, ms | off by |", "|---|---|---|---|"]
    for name, value in real.items():
        off = simulated[name] / value - 1
        lines.append(f"| {name} | {value:.0f} | {simulated[name]:.0f} | {off:+.0%} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
