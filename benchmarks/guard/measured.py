"""The runs, in processes of their own, and what was counted in them per call."""

import json
import subprocess
import sys
from collections.abc import Mapping

from benchmarks.guard import callgrind
from benchmarks.guard.figures import Traced
from benchmarks.guard.runs import CALLS, RUNS, TRACED_CALLS, WINDOWS

MODULE = "benchmarks.guard.runs"
LIMIT_SECONDS = 120


def instructions() -> dict[str, dict[str, float]]:
    """Contender -> scenario -> per call. Raises callgrind.NotMeasured."""
    counted = callgrind.instructions(MODULE, "mark")
    found: dict[str, dict[str, float]] = {}
    firsts = range(0, len(counted), WINDOWS)
    for (contender, scenario), first in zip(RUNS, firsts, strict=True):
        least = min(counted[first : first + WINDOWS])
        found.setdefault(contender, {})[scenario] = least / CALLS
    return found


def traces() -> dict[str, Traced]:
    """Scenario -> the gateway's, per call."""
    command = [sys.executable, "-m", MODULE, "trace"]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=LIMIT_SECONDS, check=True)
    return per_call(json.loads(done.stdout))


def per_call(found: Mapping[str, Mapping[str, Mapping[str, int]]]) -> dict[str, Traced]:
    """Of what `runs.traced` has found."""
    return {
        scenario: Traced(
            **{
                part: {name: count / TRACED_CALLS for name, count in counts.items()}
                for part, counts in parts.items()
            }
        )
        for scenario, parts in found.items()
    }
