"""Windows of prefill: the most calls whose reading fits between their coming and their deadlines.

All deadlines are equally long, so calls in the order of their coming are in that of their deadlines, and
what is chosen can be served if for every two of them, p before q,

    work(p ... q) <= engines * (deadline of q - coming of p)

The amounts that fit are a polymatroid, so to take the shortest call first, as much of it as fits, is
best (Edmonds). With sums S of work up to each call, a call i may have

    min over q >= i of (engines * deadline of q - S(q)) - max over p <= i of (engines * coming of p - S(p - 1))

Two trees of minima, in which a range is changed at a time, know that in logarithmic time.
"""

from collections.abc import Sequence
from math import inf

from pdgate.lab.simulator.bound.needs import Need


def windowed(needs: Sequence[Need], engines: int, window: float) -> float:
    """How many of them, parts counted as such."""
    ends = _Minima([engines * (need.at + window) for need in needs])
    begins = _Minima([-engines * need.at for need in needs])
    most = 0.0
    for i in sorted(range(len(needs)), key=lambda number: needs[number].first):
        work = needs[i].first
        fits = min(work, ends.least(i, len(needs)) + begins.least(0, i + 1))
        if work <= 0 or fits >= work:
            most += 1
        elif fits > 0:
            most += fits / work
        if fits > 0:
            ends.add(i, len(needs), -fits)
            begins.add(i + 1, len(needs), fits)
    return most


class _Minima:
    """Numbers, of any range of which the least is known, and to any range of which one is added."""

    def __init__(self, values: Sequence[float]) -> None:
        size = 1
        while size < len(values):
            size *= 2
        self._size = size
        self._least = [inf] * size + list(values) + [inf] * (size - len(values))
        self._added = [0.0] * (2 * size)
        for node in range(size - 1, 0, -1):
            self._least[node] = min(self._least[2 * node], self._least[2 * node + 1])

    def least(self, begin: int, end: int) -> float:
        return self._of(1, 0, self._size, begin, end)

    def add(self, begin: int, end: int, more: float) -> None:
        self._add(1, 0, self._size, begin, end, more)

    def _of(self, node: int, low: int, high: int, begin: int, end: int) -> float:
        if end <= low or high <= begin:
            return inf
        if begin <= low and high <= end:
            return self._least[node]
        middle = (low + high) // 2
        below = min(
            self._of(2 * node, low, middle, begin, end),
            self._of(2 * node + 1, middle, high, begin, end),
        )
        return below + self._added[node]

    def _add(self, node: int, low: int, high: int, begin: int, end: int, more: float) -> None:
        if end <= low or high <= begin:
            return
        if begin <= low and high <= end:
            self._least[node] += more
            self._added[node] += more
            return
        middle = (low + high) // 2
        self._add(2 * node, low, middle, begin, end, more)
        self._add(2 * node + 1, middle, high, begin, end, more)
        below = min(self._least[2 * node], self._least[2 * node + 1])
        self._least[node] = below + self._added[node]
