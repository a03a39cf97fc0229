"""Runs of bytes to copy, as three arrays: a long prompt has a hundred thousand of them."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from pdgate.transfer.base import Range

Offsets = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Bytes; item i of each array belongs to segment i."""

    source: Offsets
    destination: Offsets
    length: Offsets

    def __len__(self) -> int:
        return len(self.length)

    @property
    def total_bytes(self) -> int:
        return int(self.length.sum())

    def merged(self) -> Self:
        """Neighbours that go on where the one before ended, on both sides, become one."""
        if len(self) < 2:
            return self
        ends = self.source + self.length
        touches = (ends[:-1] == self.source[1:]) & (
            self.destination[:-1] + self.length[:-1] == self.destination[1:]
        )
        if not touches.any():
            return self
        first = np.flatnonzero(np.concatenate(([True], ~touches)))
        last = np.append(first[1:], len(self)) - 1
        source = self.source[first]
        return type(self)(source, self.destination[first], ends[last] - source)

    def writes(self) -> list[Range]:
        """For `Backend.write`, which the source calls."""
        return list(
            map(Range, self.source.tolist(), self.destination.tolist(), self.length.tolist())
        )

    def reads(self) -> list[Range]:
        """For `Backend.read`, which the destination calls."""
        return list(
            map(Range, self.destination.tolist(), self.source.tolist(), self.length.tolist())
        )
