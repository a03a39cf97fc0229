"""Runs of bytes to copy, as three arrays: a long prompt has a hundred thousand of them.

As objects they cost more than all of the planning, so they become objects only where
they are read one by one: in a backend, on its thread or in its process.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self, overload

import numpy as np
from numpy.typing import NDArray

from pdgate.transfer.base import Range

Offsets = NDArray[np.int64]


class Ranges(Sequence[Range]):
    """Three arrays, seen as what a backend takes."""

    __slots__ = ("_length", "_local", "_remote")

    def __init__(self, local: Offsets, remote: Offsets, length: Offsets) -> None:
        self._local = local
        self._remote = remote
        self._length = length

    def __len__(self) -> int:
        return len(self._length)

    @overload
    def __getitem__(self, at: int) -> Range: ...
    @overload
    def __getitem__(self, at: slice) -> "Ranges": ...
    def __getitem__(self, at: int | slice) -> "Range | Ranges":
        if isinstance(at, slice):
            return Ranges(self._local[at], self._remote[at], self._length[at])
        return Range(int(self._local[at]), int(self._remote[at]), int(self._length[at]))

    def __iter__(self) -> Iterator[Range]:
        return map(Range, self._local.tolist(), self._remote.tolist(), self._length.tolist())

    def packed(self) -> bytes:
        """Range after range: local, remote, length, as 64-bit little-endian integers."""
        columns = np.stack((self._local, self._remote, self._length), axis=1)
        return columns.astype("<i8", copy=False).tobytes()


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Bytes; item i of each array belongs to segment i."""

    source: Offsets
    destination: Offsets
    length: Offsets

    def __len__(self) -> int:
        return len(self.length)

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

    def writes(self) -> Ranges:
        """For `Backend.write`, which the source calls."""
        return Ranges(self.source, self.destination, self.length)

    def reads(self) -> Ranges:
        """For `Backend.read`, which the destination calls."""
        return Ranges(self.destination, self.source, self.length)
