"""What each contender takes for a call and for an event, and how much less than all features. Pure.

    call     a whole answer to a body of 200 B
    event    one more event of a stream: (stream_72 - stream_8) / 64

What the wire itself takes is taken off everywhere.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.guard.scenarios import LONG, SHORT
from benchmarks.safety.features import ALL, NONE
from benchmarks.safety.runs import CONTENDERS, WIRE

Found = Mapping[str, Mapping[str, float]]
"""Contender -> scenario -> of a call."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a call, or of an event; saved is against ALL.

    Attributes:
        us, saved_us: CPU time of the cheapest round: others can only make one dearer.
    """

    instructions: float
    saved: float
    us: float
    saved_us: float


@dataclass(frozen=True, slots=True)
class Costs:
    call: Cost
    event: Cost


def costs(counted: Found, rounds: Sequence[Found]) -> dict[str, Costs]:
    """By contender."""
    return {
        name: Costs(_cost(counted, rounds, name, of_call), _cost(counted, rounds, name, of_event))
        for name in CONTENDERS
        if name != WIRE
    }


def by_instructions(found: Mapping[str, Costs], part: Callable[[Costs], Cost]) -> float:
    """Microseconds of all features, if all instructions of the path took as long.

    Nothing but the rate is of a clock, so this holds better on a busy machine.
    """
    whole, without = part(found[ALL]), part(found[NONE])
    return without.saved * whole.us / whole.instructions


def of_call(found: Mapping[str, float]) -> float:
    return found["whole_200"]


def of_event(found: Mapping[str, float]) -> float:
    return (found[f"stream_{LONG}"] - found[f"stream_{SHORT}"]) / (LONG - SHORT)


Part = Callable[[Mapping[str, float]], float]


def _cost(counted: Found, rounds: Sequence[Found], name: str, part: Part) -> Cost:
    def net(of: Found, contender: str) -> float:
        return part(of[contender]) - part(of[WIRE])

    least = {
        contender: {scenario: min(one[contender][scenario] for one in rounds) for scenario in found}
        for contender, found in rounds[0].items()
    }
    return Cost(
        net(counted, name),
        net(counted, ALL) - net(counted, name),
        net(least, name),
        net(least, ALL) - net(least, name),
    )
