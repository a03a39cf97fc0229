"""Microseconds of a call, and of an event of a stream, by part. Pure.

event loop    what user code takes over sockets beyond what the parts take without them
kernel        as it says itself
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from benchmarks.path.parts import PARTS
from benchmarks.safety.costs import of_call, of_event

EVENT_LOOP: Final = "event loop"
KERNEL: Final = "kernel"
ROWS: Final = (*PARTS, EVENT_LOOP, KERNEL)

ByScenario = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Round:
    """
    Attributes:
        parts: Scenario -> part -> microseconds of a call, without sockets.
        used: Scenario -> user and kernel microseconds of a call, over sockets.
    """

    parts: Mapping[str, Mapping[str, float]]
    used: Mapping[str, Sequence[float]]


def of_calls(rounds: Sequence[Round]) -> dict[str, float]:
    """Row -> microseconds of a call, the median over rounds."""
    return _rows(rounds, of_call)


def of_events(rounds: Sequence[Round]) -> dict[str, float]:
    return _rows(rounds, of_event)


def _rows(rounds: Sequence[Round], figure: Callable[[ByScenario], float]) -> dict[str, float]:
    each = [_round(one, figure) for one in rounds]
    return {row: median(one[row] for one in each) for row in ROWS}


def _round(one: Round, figure: Callable[[ByScenario], float]) -> dict[str, float]:
    found = {
        part: figure({name: parts.get(part, 0.0) for name, parts in one.parts.items()})
        for part in PARTS
    }
    user = figure({name: used[0] for name, used in one.used.items()})
    found[EVENT_LOOP] = user - sum(found.values())
    found[KERNEL] = figure({name: used[1] for name, used in one.used.items()})
    return found
