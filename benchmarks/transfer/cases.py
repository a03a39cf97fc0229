"""What is moved: so many bytes, in so many pieces, so many times.

Every call of a measurement has other ranges, spread over regions that no cache holds, as the
pages of a KV cache are; `warm` cases move the same bytes again and again, which shows what a
call costs rather than what memory does.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pdgate.transfer.base import Range

KIB: Final = 1 << 10
MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Case:
    """
    Attributes:
        piece_bytes: Of each range, a multiple of 8.
        calls: Transfers in one measurement, at most.
        in_flight: Begun before the first of them is waited for, as pushes are.
    """

    name: str
    piece_bytes: int
    pieces: int = 1
    calls: int = 128
    warm: bool = False
    in_flight: int = 1

    @property
    def bytes(self) -> int:
        return self.piece_bytes * self.pieces


def page_case(pages: int, page_bytes: int = 32 * KIB) -> Case:
    return Case(f"{pages} x {page_bytes // KIB} KiB", page_bytes, pages)


FULL: Final = (
    Case("4 KiB", 4 * KIB),
    Case("64 KiB", 64 * KIB),
    Case("1 MiB", MIB),
    Case("1 MiB, warm", MIB, warm=True),
    Case("1 MiB, 4 at once", MIB, in_flight=4),
    Case("4 MiB", 4 * MIB),
    Case("64 MiB", 64 * MIB),
    page_case(256),
    page_case(2048),
)
FULL_REGION_BYTES: Final = 128 * MIB

SMOKE: Final = (Case("4 KiB", 4 * KIB, calls=4), page_case(16, 4 * KIB))
SMOKE_REGION_BYTES: Final = MIB


def plan(case: Case, region_bytes: int, seed: int) -> list[list[Range]]:
    """The ranges of each call, scattered on both sides; no byte is written twice unless warm."""
    slots = region_bytes // case.piece_bytes
    calls = min(case.calls, slots // case.pieces)
    chance = random.Random(seed)
    wanted = case.pieces if case.warm else calls * case.pieces
    local, remote = chance.sample(range(slots), wanted), chance.sample(range(slots), wanted)
    size = case.piece_bytes
    ranges = [Range(a * size, b * size, size) for a, b in zip(local, remote, strict=True)]
    if case.warm:
        return [ranges] * calls
    return [ranges[i : i + case.pieces] for i in range(0, wanted, case.pieces)]


def in_one_piece(case: Case, region_bytes: int) -> list[list[Range]]:
    """As many bytes for a baseline that does not scatter: call after call, end to end."""
    calls = len(plan(case, region_bytes, 0))
    if case.warm:
        return [[Range(0, 0, case.bytes)]] * calls
    return [[Range(i * case.bytes, i * case.bytes, case.bytes)] for i in range(calls)]


def as_data(calls: Sequence[Sequence[Range]]) -> list[list[tuple[int, int, int]]]:
    return [[(one.local, one.remote, one.length) for one in ranges] for ranges in calls]


def from_data(data: Sequence[Sequence[tuple[int, int, int]]]) -> list[list[Range]]:
    return [[Range(*one) for one in ranges] for ranges in data]
