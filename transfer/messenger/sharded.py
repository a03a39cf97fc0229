"""P's side of one push when memory is in shards: every region has a mover of its own.

A tile is one write for whoever counts tiles here, and one write per cut (shards.py) for D:
it is over when all of them are.
"""

import threading
from collections.abc import Sequence
from contextlib import ExitStack

from pdgate.transfer.base import Descriptor, TransferError
from pdgate.transfer.messenger.mover import Destination, Done, Mover
from pdgate.transfer.messenger.shape import Shape
from pdgate.transfer.messenger.shards import Blocks, pairs, writes


class Sharded:
    def __init__(
        self,
        movers: Sequence[Mover],
        remotes: Sequence[Descriptor],
        line: int,
        source: Shape,
        destination: Shape,
        key: str,
    ) -> None:
        """`line` as in `Mover.open`. Raises OSError, TransferError, HandOverError."""
        self._pairs = pairs(source, destination, key)
        self._block_tokens = source.block_tokens
        self._ways: dict[tuple[int, int], Destination] = {}
        with ExitStack() as undo:
            for pair in self._pairs:
                ours, theirs = pair.link.source.tp, pair.link.destination.tp
                way = movers[ours].open(remotes[theirs], line)
                undo.callback(way.close)
                self._ways[ours, theirs] = way
            undo.pop_all()

    def write(self, layer: int, blocks: Blocks, until: float, immediate: int, done: Done) -> None:
        """A tile: copies, then counts `immediate` once per cut. `until` as in a mover's."""
        cuts = writes(self._pairs, self._block_tokens, layer, blocks)
        ended = _last(len(cuts), done)
        for cut in cuts:
            self._ways[cut.ours, cut.theirs].write(cut.ranges, until, immediate, ended)

    def close(self) -> None:
        """After the last `done`."""
        for way in self._ways.values():
            way.close()


def _last(count: int, done: Done) -> Done:
    """Calls `done` when it has been called `count` times, with the first error."""
    lock = threading.Lock()
    missing = count
    first: TransferError | None = None

    def ended(error: TransferError | None) -> None:
        nonlocal missing, first
        with lock:
            first = first or error
            missing -= 1
            if missing:
                return
        done(first)

    return ended
