"""Parts of a region that may be granted: which ranges lie in them.

A check is made for each transfer and its list of ranges, of which there may be thousands.
"""

import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from math import inf
from operator import add
from typing import Final, Protocol

import numpy as np

FEW: Final = 32
"""Ranges up to which a loop is faster than NumPy (measured: 10 µs)."""


class Part(Protocol):
    def covers(self, offsets: Sequence[int], lengths: Sequence[int]) -> bool:
        """Whether all of these ranges lie in it; nothing in them is negative."""


class Stretch(Part):
    """Bytes in a row."""

    def __init__(self, start: int, length: int) -> None:
        self._start = start
        self._end = start + length

    def covers(self, offsets: Sequence[int], lengths: Sequence[int]) -> bool:
        if not offsets:
            return True
        return min(offsets) >= self._start and max(map(add, offsets, lengths)) <= self._end


class Blocks(Part):
    """The pages of some blocks in every layer: [layer][block], all of one size."""

    def __init__(self, page_bytes: int, blocks_per_layer: int, blocks: Sequence[int]) -> None:
        self._page_bytes = page_bytes
        self._per_layer = blocks_per_layer
        allowed = np.zeros(blocks_per_layer + 1, np.int32)
        allowed[np.asarray(blocks, np.int64) + 1] = 1
        # How many of the blocks before this one are allowed.
        self._before = np.cumsum(allowed, dtype=np.int32)

    def covers(self, offsets: Sequence[int], lengths: Sequence[int]) -> bool:
        if len(offsets) > FEW:
            return self._covers_many(offsets, lengths)
        page, per_layer, before = self._page_bytes, self._per_layer, self._before
        for offset, length in zip(offsets, lengths, strict=True):
            if not length:
                continue
            layer, first = divmod(offset // page, per_layer)
            last = (offset + length - 1) // page - layer * per_layer
            if last >= per_layer or before[last + 1] - before[first] != last + 1 - first:
                return False
        return True

    def _covers_many(self, offsets: Sequence[int], lengths: Sequence[int]) -> bool:
        page, per_layer, before = self._page_bytes, self._per_layer, self._before
        starts, sizes = np.asarray(offsets, np.uint64), np.asarray(lengths, np.uint64)
        # What does not fit into 63 bits lies in no region.
        if int(starts.max()) >> 62 or int(sizes.max()) >> 62:
            return False
        starts, sizes = starts.astype(np.int64), sizes.astype(np.int64)
        starts, sizes = starts[sizes > 0], sizes[sizes > 0]
        layer, first = np.divmod(starts // page, per_layer)
        last = (starts + sizes - 1) // page - layer * per_layer
        if np.any(last >= per_layer):
            return False
        return bool(np.all(before[last + 1] - before[first] == last + 1 - first))


class Pieces(Part):
    """Ranges that come and go; a range that is asked for may lie in several that touch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._added: Counter[tuple[int, int]] = Counter()
        self._merged: list[tuple[int, int]] | None = None

    def add(self, offsets: Iterable[int], lengths: Iterable[int]) -> None:
        with self._lock:
            self._added.update(zip(offsets, lengths, strict=True))
            self._merged = None

    def remove(self, offsets: Iterable[int], lengths: Iterable[int]) -> None:
        with self._lock:
            self._added.subtract(zip(offsets, lengths, strict=True))
            self._added = +self._added
            self._merged = None

    def covers(self, offsets: Sequence[int], lengths: Sequence[int]) -> bool:
        with self._lock:
            if self._merged is None:
                self._merged = _merged(self._added)
            merged = self._merged
        for offset, length in zip(offsets, lengths, strict=True):
            found = bisect_right(merged, (offset, inf)) - 1
            if length and (found < 0 or offset + length > merged[found][1]):
                return False
        return True


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """(start, end), in order and apart from each other."""
    found: list[tuple[int, int]] = []
    for offset, length in sorted(ranges):
        if found and offset <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], offset + length)
        else:
            found.append((offset, offset + length))
    return found
