"""Turns and medians."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median

from benchmarks.disaggregation import load
from benchmarks.disaggregation.fleet import RULES

MIXES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of long prompts."""

METRICS = ("first_seconds", "pace_seconds", "last_seconds")
RATIO = "auto / the better one"
Figures = Mapping[str, Mapping[float, Mapping[str, float]]]
"""Metric -> mix -> rule, and RATIO -> median over the rounds."""


@dataclass(frozen=True, slots=True)
class Plan:
    """
    Attributes:
        calls: Of each rule in each round, after as many clients' first calls as warm it up.
    """

    rounds: int
    calls: int


def measure(gateways: Mapping[str, str], plan: Plan) -> Figures:
    seen: dict[tuple[float, str], list[load.Seen]] = {}
    for number in range(plan.rounds):
        for turn, mix in enumerate(MIXES):
            prompts = load.lengths(plan.calls, mix, seed=number)
            shift = (number + turn) % len(RULES)
            for rule in (*RULES[shift:], *RULES[:shift]):
                load.ask_all(gateways[rule], prompts[: load.CLIENTS])
                found = load.ask_all(gateways[rule], prompts)
                seen.setdefault((mix, rule), []).append(found)
                _say(f"round {number + 1}, {mix:.0%} long, {rule}: {asdict(found)}")
    return {
        metric: {
            mix: _medians(
                [
                    {rule: getattr(seen[mix, rule][n], metric) for rule in RULES}
                    for n in range(plan.rounds)
                ]
            )
            for mix in MIXES
        }
        for metric in METRICS
    }


def _medians(of_rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """RATIO is within rounds: what disturbs the machine for a minute disturbs all rules alike."""
    ratios = [one["auto"] / min(one["always"], one["never"]) for one in of_rounds]
    return {rule: median(one[rule] for one in of_rounds) for rule in RULES} | {
        RATIO: median(ratios)
    }


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
