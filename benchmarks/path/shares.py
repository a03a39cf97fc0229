"""Microseconds of a call, and of an event of a stream, by part. Pure.

event loop    what user code takes over sockets beyond what the parts take without them
kernel        as it says itself
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
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
    """Row -> microseconds of a call.

    Others can only make a round dearer, so of each run the cheapest one counts; in which part the
    path was is of all of them.
    """
    return _rows(rounds, of_call)


def of_events(rounds: Sequence[Round]) -> dict[str, float]:
    return _rows(rounds, of_event)


def _rows(rounds: Sequence[Round], figure: Callable[[ByScenario], float]) -> dict[str, float]:
    parts, used = {}, {}
    for name in rounds[0].parts:
        parts[name] = _parts([one.parts[name] for one in rounds])
        used[name] = min((one.used[name] for one in rounds), key=sum)
    found = {
        part: figure({name: by_part[part] for name, by_part in parts.items()}) for part in PARTS
    }
    user, kernel = (figure({name: pair[of] for name, pair in used.items()}) for of in (0, 1))
    return {**found, EVENT_LOOP: user - sum(found.values()), KERNEL: kernel}


def _parts(rounds: Sequence[ByScenario]) -> dict[str, float]:
    """Of one scenario: the cheapest round's time, shared out as in all of them."""
    least = min(sum(one.values()) for one in rounds)
    shares = [{part: time / sum(one.values()) for part, time in one.items()} for one in rounds]
    return {part: least * fmean(one.get(part, 0.0) for one in shares) for part in PARTS}
