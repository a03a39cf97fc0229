"""python -m benchmarks.simulation_validation [--calls N] [--per-second X] [--slow-motion X] [--policy NAME]
    [--batch-share X --decode-concurrency N --give-way N --ttft-target X]

Exits with 1 if a figure is further off than ALLOWED.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Final

import httpx2

from benchmarks.simulation_validation.asking import Seen, replay
from benchmarks.simulation_validation.calibration import calibrated
from benchmarks.simulation_validation.fleet import fleet
from benchmarks.simulation_validation.piece import Call, piece
from pdgate.lab.simulator.spread import percentile
from pdgate.lab.simulator.summary import summary
from pdgate.lab.simulator.trace import BadTrace, read
from pdgate.lab.simulator.world import WorldPlan, run
from pdgate.scheduling.admission import Limits
from pdgate.scheduling.policy import DEFAULT
from pdgate.scheduling.policy_context import Targets

TRACE = Path(__file__).parents[3] / "shared/traces/conversation_trace.jsonl"
ALLOWED: Final = 0.15
GAVE_WAY: Final = "pdgate_calls_gave_way_total{"
LONG: Final = 3600.0
"""Seconds that a call may wait in the gateway, which is to turn none away."""

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
    parser.add_argument("--batch-share", type=float, default=0.0, help="calls of priority 7")
    parser.add_argument("--decode-concurrency", type=int, default=None)
    parser.add_argument("--give-way", type=int, default=0)
    parser.add_argument("--ttft-target", type=float, help="calls wait for it; without slow motion")
    asked = parser.parse_args()
    try:
        asks = read(asked.trace)
    except BadTrace as error:
        sys.exit(str(error))
    calls = piece(asks, asked.calls, asked.per_second / asked.slow_motion, asked.batch_share)
    targets = Targets(ttft_seconds=(asked.ttft_target or 1.0) * asked.slow_motion)
    given = {"give_way": asked.give_way, "wait_seconds": LONG}
    if asked.decode_concurrency is not None:
        given["decode_concurrency"] = asked.decode_concurrency
    # Of a token no target is set.
    waits = asked.ttft_target is not None or asked.give_way
    kept = Targets(ttft_seconds=targets.ttft_seconds, tpot_seconds=inf) if waits else None
    limits = Limits.of(given, targets, kept if asked.policy == DEFAULT else None)
    load = os.getloadavg()[0]
    with fleet(
        asked.policy, asked.prefills, asked.decodes, asked.slow_motion, flags_of(limits, targets)
    ) as running:
        hardware = asyncio.run(calibrated(running, asked.slow_motion))
        print("calibrated:", asdict(hardware), file=sys.stderr, flush=True)
        seen = asyncio.run(replay(running.gateway, calls))
        print(f"measured: calls gave way {gave_way(running.gateway):g} times", file=sys.stderr)
    plan = WorldPlan(
        asked.policy, asked.policy, asked.prefills, asked.decodes, hardware, targets, limits=limits
    )
    real, simulated = figures_of(seen), simulate(plan, calls)
    print(f"load average {load:.1f} before, {os.getloadavg()[0]:.1f} after\n")
    print(table(real, simulated))
    sys.exit(any(abs(simulated[name] / real[name] - 1) > ALLOWED for name in real))


def flags_of(limits: Limits, targets: Targets) -> list[str]:
    """Of a gateway that has these limits; none where nothing is limited."""
    if not limits.any:
        return []
    given = {
        "--decode-concurrency": limits.decode_concurrency,
        "--give-way": limits.give_way,
        "--max-wait": limits.wait_seconds,
        "--ttft-target": targets.ttft_seconds,
    }
    return [word for flag, value in given.items() if value for word in (flag, str(value))]


def gave_way(gateway: str) -> float:
    """How often calls did, of all that the gateway has had."""
    lines = httpx2.get(f"{gateway}/metrics", trust_env=False).text.splitlines()
    return sum(float(one.split()[-1]) for one in lines if one.startswith(GAVE_WAY))


def figures_of(seen: Sequence[Seen]) -> Figures:
    """In milliseconds; of each urgency, where there are several."""
    figures = {}
    kinds = sorted({one.urgency for one in seen})
    for kind in kinds:
        some = [one for one in seen if one.urgency == kind]
        of = f"priority {kind}, " if len(kinds) > 1 else ""
        for name, values in (
            ("TTFT", sorted(one.ttft for one in some)),
            ("TPOT", sorted(one.tpot for one in some)),
        ):
            figures[f"{of}{name} p50"] = 1000 * percentile(values, 0.5)
            figures[f"{of}{name} p90"] = 1000 * percentile(values, 0.9)
    return figures


def simulate(plan: WorldPlan, calls: Sequence[Call]) -> Figures:
    ran = run(plan, [call.ask for call in calls])
    figures = summary(ran)
    if figures.lost:
        raise RuntimeError(f"simulated calls were lost: {figures.lost}")
    print(f"simulated: calls gave way {figures.gave_way} times", file=sys.stderr)
    return figures_of(
        [Seen(one.ttft or 0.0, one.tpot or 0.0, one.ask.urgency) for one in ran.outcomes]
    )


def table(real: Figures, simulated: Figures) -> str:
    lines = ["| | measured, ms | simulated, ms | off by |", "|---|---|---|---|"]
    for name, value in real.items():
        off = simulated[name] / value - 1
        lines.append(f"| {name} | {value:.0f} | {simulated[name]:.0f} | {off:+.0%} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
