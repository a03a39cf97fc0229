"""What all contenders take, counted and timed in processes of their own."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence

from benchmarks.guard import callgrind
from benchmarks.safety.runs import CONTENDERS, MARKED_CALLS, SHOWN, WINDOWS

MODULE = "benchmarks.safety.runs"
LIMIT_SECONDS = 120
ByScenario = Mapping[str, float]
"""Scenario -> of a call."""


def instructions() -> dict[str, dict[str, float]]:
    """Contender -> scenario -> instructions of a call. Raises callgrind.NotMeasured."""
    found = {}
    for name in CONTENDERS:
        # A process each: behind other variants in one, a count was up to 4 % higher.
        counted = iter(callgrind.instructions(MODULE, "mark", name))
        found[name] = {
            scenario.name: min(next(counted) for _ in range(WINDOWS)) / MARKED_CALLS
            for scenario in SHOWN
        }
    return found


def microseconds(rounds: int) -> list[dict[str, ByScenario]]:
    """Per round: contender -> scenario -> CPU time of a call. Each round begins with another."""
    return [{name: _timed(name) for name in _turned(number)} for number in range(rounds)]


def _turned(by: int) -> Sequence[str]:
    by %= len(CONTENDERS)
    return CONTENDERS[by:] + CONTENDERS[:by]


def _timed(name: str) -> ByScenario:
    command = [sys.executable, "-m", MODULE, "time", name]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=LIMIT_SECONDS, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found
