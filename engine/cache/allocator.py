"""Owners of blocks. Pure bookkeeping; free + used == total at all times.

    empty  --take-->  used (counted owners)  --last drop-->  empty
                        ^                                \\-> idle (contents worth keeping)
                        '--- share ------ idle --take-->  used, contents forgotten

Idle blocks are free: they are taken once the empty ones are gone, longest idle first. Blocks that
are taken together lie in as few runs as can be (runs.py): of idle ones, among the AMONG times as many
that have been idle for longest.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from pdgate.engine.cache.runs import FreeRuns, longest_runs

AMONG: Final = 2
"""Idle blocks looked at for each that is needed: more would forget what is still of use."""


class OutOfBlocks(Exception):
    """Fewer blocks are free than were asked for; nothing was taken."""


class Allocator:
    """
    Args:
        forget: Told of a block whose contents are lost, because it was taken anew.
    """

    def __init__(self, total: int, forget: Callable[[int], None] = lambda block_id: None) -> None:
        self.total = total
        self._forget = forget
        self._empty = FreeRuns(total)
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._owners: dict[int, int] = {}
        self._worth_keeping: set[int] = set()

    @property
    def free(self) -> int:
        return len(self._empty) + len(self._idle)

    @property
    def used(self) -> int:
        return len(self._owners)

    def take(self, count: int, after: int | None = None) -> list[int]:
        """`count` blocks with one owner each, if it can be those that lie behind `after`.

        Raises OutOfBlocks.
        """
        if count > self.free:
            raise OutOfBlocks(f"{count} blocks asked for, {self.free} free")
        taken = self._empty.take(count, after)
        if len(taken) < count:
            taken += self._take_idle(count - len(taken))
        self._owners |= dict.fromkeys(taken, 1)
        behind = -1 if after is None else after
        # Those behind it first, so that a sequence goes on where it lies.
        return sorted(taken, key=lambda block_id: (block_id <= behind, block_id))

    def _take_idle(self, count: int) -> list[int]:
        oldest = islice(self._idle, AMONG * count if count > 1 else 1)
        taken = longest_runs(oldest, count)
        for block_id in taken:
            del self._idle[block_id]
            self._worth_keeping.discard(block_id)
            self._forget(block_id)
        return taken

    def share(self, block_ids: Iterable[int]) -> None:
        """One more owner for blocks that are used or idle."""
        for block_id in block_ids:
            self._idle.pop(block_id, None)
            self._owners[block_id] = self._owners.get(block_id, 0) + 1

    def drop(self, block_ids: Iterable[int]) -> None:
        """One owner less. Raises KeyError for a block that has none.

        Later blocks of a sequence go idle first, as they are of use only after the earlier.
        """
        for block_id in reversed(list(block_ids)):
            self._owners[block_id] -= 1
            if self._owners[block_id]:
                continue
            del self._owners[block_id]
            if block_id in self._worth_keeping:
                self._idle[block_id] = None
            else:
                self._empty.add(block_id)

    def keep_contents(self, block_id: int) -> None:
        """When its last owner leaves, the block goes idle rather than empty."""
        self._worth_keeping.add(block_id)

    def forget_all(self) -> None:
        """No contents are worth keeping any more; who uses a block goes on doing so."""
        for block_id in self._worth_keeping:
            self._forget(block_id)
        self._worth_keeping.clear()
        for block_id in self._idle:
            self._empty.add(block_id)
        self._idle.clear()
