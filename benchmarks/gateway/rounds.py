"""Turns: in every round each scenario is run on each gateway, and the order goes round too."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.gateway.fleet import Fleet
from benchmarks.gateway.outcome import Outcome, Wrong
from benchmarks.gateway.scenarios import Scenario
from benchmarks.gateway.trial import trial


@dataclass(slots=True)
class Seen:
    """One gateway in one scenario.

    Attributes:
        rounds: The outcomes of its loads, for each round.
        wrong: What was wrong first; then there are no figures.
    """

    rounds: list[list[Outcome]] = field(default_factory=list)
    wrong: str | None = None


Results = Mapping[str, Mapping[str, Seen]]
"""Scenario -> gateway."""


def measure(fleet: Fleet, scenarios: Sequence[Scenario], rounds: int) -> Results:
    results = {
        scenario.name: {gateway.target.name: Seen() for gateway in fleet.gateways}
        for scenario in scenarios
    }
    for number in range(rounds):
        for turn, scenario in enumerate(scenarios):
            shift = (number + turn) % max(1, len(fleet.gateways))
            for gateway in (*fleet.gateways[shift:], *fleet.gateways[:shift]):
                name = gateway.target.name
                seen = results[scenario.name][name]
                # There is no figure any more, whatever it does now.
                if seen.wrong is not None:
                    continue
                try:
                    seen.rounds.append(trial(fleet, gateway, scenario))
                except Wrong as wrong:
                    seen.wrong = str(wrong)
                said = seen.wrong or "; ".join(
                    f"{figure.title} {figure.of(seen.rounds[-1]):.1f} {figure.unit}"
                    for figure in scenario.figures
                )
                _say(f"round {number + 1}, {scenario.name}, {name}: {said}")
    return results


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
