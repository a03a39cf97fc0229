"""Turns of all contenders, and what is made of their times."""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

from benchmarks.transfer.cases import MIB, Case, in_one_piece, plan
from benchmarks.transfer.contenders import Contender
from benchmarks.transfer.pair import Measured, Pair


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one contender and case, over the rounds; a round's figure is its median call.

    Attributes:
        ratio: To the baseline of the same round: median, least, most.
        cpu_ms_per_mib: Of both processes, as they count it (the kernel's part included).
        cpu_us_per_piece: The same by range.
    """

    contender: str
    case: str
    gb_per_second: float
    call_us: float
    ratio: tuple[float, float, float]
    cpu_ms_per_mib: float
    cpu_us_per_piece: float
    pieces: int


def run(
    contenders: Sequence[Contender],
    cases: Sequence[Case],
    region_bytes: int,
    rounds: int,
    say: Callable[[str], None],
) -> list[Figures]:
    """Every contender's baseline has to be among them. Raises RuntimeError, KeyError."""
    measured: dict[tuple[str, str], list[Measured]] = {}
    with ExitStack() as stack:
        pairs: dict[str, Pair] = {}
        for one in contenders:
            pairs[one.name] = Pair(one, region_bytes)
            stack.callback(pairs[one.name].close)
        for number in range(rounds + 1):
            # The first one is for connections, page faults and imports.
            say(f"round {number} of {rounds}" if number else "warming up")
            for case in cases:
                for one in _in_turn(contenders, number):
                    calls = (
                        in_one_piece(case, region_bytes)
                        if one.in_one_piece
                        else plan(case, region_bytes, number)
                    )
                    found = pairs[one.name].measure(calls, case.in_flight)
                    if number:
                        measured.setdefault((one.name, case.name), []).append(found)
    return [figures(one, case, measured) for one in contenders for case in cases]


def _in_turn(contenders: Sequence[Contender], number: int) -> list[Contender]:
    """In changing order, with those together that are compared with one baseline."""
    chance = random.Random(number)
    shuffled = chance.sample(contenders, len(contenders))
    baselines = list(dict.fromkeys(one.baseline for one in shuffled))
    return sorted(shuffled, key=lambda one: baselines.index(one.baseline))


def figures(
    one: Contender, case: Case, measured: Mapping[tuple[str, str], Sequence[Measured]]
) -> Figures:
    found, baseline = measured[one.name, case.name], measured[one.baseline, case.name]
    seconds = [median(each.seconds) for each in found]
    ratios = [median(base.seconds) / mine for base, mine in zip(baseline, seconds, strict=True)]
    cpu = median(each.cpu_seconds / len(each.seconds) for each in found)
    return Figures(
        one.name,
        case.name,
        case.bytes / median(seconds) / 1e9,
        median(seconds) * 1e6,
        (median(ratios), min(ratios), max(ratios)),
        cpu * 1e3 / (case.bytes / MIB),
        cpu * 1e6 / case.pieces,
        case.pieces,
    )
