"""Empty blocks, kept as runs of neighbours, so that a request gets blocks that lie in a row.

KV that lies in a row is one piece of a transfer, whatever its length. So a request is given the smallest
run that holds all it needs, else the largest ones first.

    ....####..##....   three runs; 3 blocks come from the middle one, 5 from the first and the last
"""

from collections.abc import Iterable


class FreeRuns:
    """Blocks, each at most once. Length and membership take no search; finding a run one over the lengths."""

    def __init__(self, total: int) -> None:
        self._first: dict[int, int] = {}
        """First block of a run -> behind its last."""
        self._last: dict[int, int] = {}
        """Behind the last block of a run -> its first."""
        self._of_length: dict[int, dict[int, None]] = {}
        self._count = 0
        if total:
            self._put(0, total)

    def __len__(self) -> int:
        return self._count

    def add(self, block: int) -> None:
        """It was not there before."""
        begin, end = block, block + 1
        if block in self._last:
            begin = self._last[block]
            self._take_out(begin)
        if block + 1 in self._first:
            end = self._first[block + 1]
            self._take_out(block + 1)
        self._put(begin, end)

    def take(self, count: int, after: int | None = None) -> list[int]:
        """So many, or all there are if there are fewer: those behind `after` first, then whole runs."""
        taken: list[int] = []
        if after is not None and after + 1 in self._first:
            taken += self._cut(after + 1, count)
        while len(taken) < count and self._of_length:
            missing = count - len(taken)
            enough = [length for length in self._of_length if length >= missing]
            length = min(enough) if enough else max(self._of_length)
            taken += self._cut(next(iter(self._of_length[length])), missing)
        return taken

    def _cut(self, begin: int, most: int) -> Iterable[int]:
        """The first blocks of a run."""
        end = self._first[begin]
        cut = min(end, begin + most)
        self._take_out(begin)
        if cut < end:
            self._put(cut, end)
        return range(begin, cut)

    def _put(self, begin: int, end: int) -> None:
        self._first[begin], self._last[end] = end, begin
        self._of_length.setdefault(end - begin, {})[begin] = None
        self._count += end - begin

    def _take_out(self, begin: int) -> None:
        end = self._first.pop(begin)
        del self._last[end]
        alike = self._of_length[end - begin]
        del alike[begin]
        if not alike:
            del self._of_length[end - begin]
        self._count -= end - begin


def longest_runs(blocks: Iterable[int], count: int) -> list[int]:
    """Of these blocks so many, in as few runs as can be; of runs alike those that come first.

    A run that is too long gives its first blocks.
    """
    order = list(blocks)
    age = {block: number for number, block in enumerate(order)}
    runs: list[range] = []
    for block in sorted(order):
        if runs and block == runs[-1].stop:
            runs[-1] = range(runs[-1].start, block + 1)
        else:
            runs.append(range(block, block + 1))
    runs.sort(key=lambda run: (-min(len(run), count), min(age[block] for block in run)))
    taken: list[int] = []
    for run in runs:
        taken += run[: count - len(taken)]
        if len(taken) == count:
            break
    return taken
