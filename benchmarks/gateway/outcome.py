"""What the load generator has seen."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class Wrong(Exception):
    """An answer was wrong, or a call did not take the way it should: there is no figure."""


@dataclass(frozen=True, slots=True)
class Times:
    p50: float
    p99: float
    max: float


NONE = Times(float("nan"), float("nan"), float("nan"))
"""Nothing was timed: there is no first event where nothing is streamed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    Attributes:
        calls: That were measured.
        asked: All calls, with those before.
        seconds: In which the measured ones were served.
        tokens: Of the measured streams.
        cpu_us: User and system time of all the gateway's processes over the measured window.
        peak_kb: Their resident memory, at its highest within the window.
        peak_is_new: Whether the kernel let us forget earlier peaks.
        whole_us, first_us, transit_us: A call; until its first event; an event from when the
            engine sent it until it was here.
    """

    calls: int
    asked: int
    seconds: float
    tokens: int
    cpu_us: float
    peak_kb: int
    peak_is_new: bool
    whole_us: Times
    first_us: Times
    transit_us: Times


def parse(line: str, idle: int = 0) -> Outcome:
    """`idle`: how many clients shall have stayed connected beside those that ask. Raises Wrong."""
    said: Mapping[str, Any] = json.loads(line)
    if said["wrong"]:
        raise Wrong(f"{said['wrong']} of {said['asked']} answers: {said['first_wrong']}")
    if not said["calls"]:
        raise Wrong("no call was made")
    if said["idle_open"] < idle:
        raise Wrong(f"{said['idle_open']} of {idle} idle clients are connected")
    return Outcome(
        calls=said["calls"],
        asked=said["asked"],
        seconds=said["seconds"],
        tokens=said["tokens"],
        cpu_us=said["cpu_us"],
        peak_kb=said["peak_kb"],
        peak_is_new=said["peak_is_new"],
        whole_us=_times(said["whole_us"]),
        first_us=_times(said["first_us"]),
        transit_us=_times(said["transit_us"]),
    )


def _times(said: Mapping[str, float] | None) -> Times:
    return NONE if said is None else Times(**said)
