"""Turns: in every round each scenario is run on each gateway, and the order goes round too."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks.gateway.fleet import Fleet, Gateway
from benchmarks.gateway.outcome import Outcome, Wrong
from benchmarks.gateway.scenarios import Scenario
from benchmarks.gateway.targets.base import Target
from benchmarks.gateway.trial import trial
from tests.support.processes import ChildFailed


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


@dataclass(frozen=True, slots=True)
class Plan:
    targets: Sequence[Target]
    scenarios: Sequence[Scenario]
    rounds: int


@dataclass(frozen=True, slots=True)
class Measured:
    """
    Attributes:
        down: Why a gateway was not measured at all, by name.
    """

    results: Results
    down: Mapping[str, str]


def measure(fleet: Fleet, plan: Plan) -> Measured:
    with ExitStack() as running:
        gateways: list[Gateway] = []
        down: dict[str, str] = {}
        for target in plan.targets:
            try:
                gateways.append(running.enter_context(fleet.gateway(target)))
            except ChildFailed as failed:
                down[target.name] = f"does not run: {failed}"
                _say(f"{target.name} {down[target.name]}")
        results = {
            scenario.name: {gateway.target.name: Seen() for gateway in gateways}
            for scenario in plan.scenarios
        }
        for number in range(plan.rounds):
            for turn, scenario in enumerate(plan.scenarios):
                shift = (number + turn) % max(1, len(gateways))
                for gateway in (*gateways[shift:], *gateways[:shift]):
                    seen = results[scenario.name][gateway.target.name]
                    # Once wrong there is no figure, whatever it does later.
                    if seen.wrong is None:
                        _try(fleet, gateway, scenario, seen)
                        _tell(number, gateway, scenario, seen)
        return Measured(results, down)


def _try(fleet: Fleet, gateway: Gateway, scenario: Scenario, seen: Seen) -> None:
    try:
        with ExitStack() as running:
            if scenario.fresh:
                gateway = running.enter_context(fleet.gateway(gateway.target))
            seen.rounds.append(trial(fleet, gateway, scenario))
    except (Wrong, ChildFailed) as wrong:
        seen.wrong = str(wrong)


def _tell(number: int, gateway: Gateway, scenario: Scenario, seen: Seen) -> None:
    """A line for who waits."""
    said = seen.wrong or "; ".join(
        f"{figure.title} {figure.of(seen.rounds[-1]):.1f} {figure.unit}"
        for figure in scenario.figures
    )
    _say(f"round {number + 1}, {scenario.name}, {gateway.target.name}: {said}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
