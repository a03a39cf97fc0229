"""P's side of one push when memory is in shards: every region has a mover of its own.

A tile is one write where tiles are counted here, and one write per pair of ranks that share
some of it for D: it is over when all of them are.
"""

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from pdgate.transfer.base import TransferError
from pdgate.transfer.messenger import shards
from pdgate.transfer.messenger.asked import Asked
from pdgate.transfer.messenger.mover import Destination, Done, Mover
from pdgate.transfer.messenger.shape import PageShape
from pdgate.transfer.messenger.tiles import Tile
from pdgate.transfer.plan.links import common
from pdgate.transfer.plan.pair import PairChunk


class Sharded:
    def __init__(
        self, movers: Mapping[int, Mover], line: int, source: PageShape, asked: Asked
    ) -> None:
        """`movers`: by the number of their region. `line` as in `Mover.open`.

        Raises OSError, TransferError, HandOverError.
        """
        self._asked = asked
        self._pairs = shards.pairs(source, asked.shape, asked.key, asked.between)
        self._lock = threading.Lock()
        self._planned: dict[int, list[PairChunk]] = {}
        self._lanes_left: dict[int, int] = {}
        ways: dict[tuple[int, int], Destination] = {}
        with ExitStack() as undo:
            for pair in self._pairs:
                ours = shards.region(source, pair.link.source)
                theirs = shards.region(asked.shape, pair.link.destination)
                ways[ours, theirs] = movers[ours].open(asked.remotes[theirs], line)
                undo.callback(ways[ours, theirs].close)
            undo.pop_all()
        self._ways = list(ways.values())

    def write(self, tile: Tile, block_ids: Sequence[int], done: Done) -> None:
        """Copies, then counts once per pair. Each tile of a push once; `block_ids` are ours,
        from the prompt's first token on.
        """
        asked = self._asked
        layers = asked.tiles.lanes[tile.lane]
        try:
            chunks = self._chunks(tile.chunk, block_ids)
        except TransferError as error:
            done(error)
            return
        parts = [
            (way, chunk.of(shared).writes())
            for way, pair, chunk in zip(self._ways, self._pairs, chunks, strict=True)
            if (shared := common(layers, pair.link.layers))
        ]
        if not parts:
            # Layers between those of ranks that are not neighbours.
            done(None)
            return
        ended = _last(len(parts), done)
        for way, ranges in parts:
            way.write(ranges, asked.until, asked.immediate, ended)

    def cancel(self) -> None:
        """Gives up what it writes, as `Destination.cancel` does."""
        for way in self._ways:
            way.cancel()

    def close(self) -> None:
        """After the last `done`."""
        for way in self._ways:
            way.close()

    def _chunks(self, number: int, block_ids: Sequence[int]) -> list[PairChunk]:
        """Of each pair; planned with the first lane and kept until the last."""
        asked = self._asked
        with self._lock:
            planned = self._planned.get(number)
            if planned is None:
                tokens = asked.tiles.chunks[number]
                planned = [pair.chunk(block_ids, asked.block_ids, tokens) for pair in self._pairs]
                self._planned[number] = planned
            left = self._lanes_left.get(number, len(asked.tiles.lanes)) - 1
            self._lanes_left[number] = left
            if not left:
                del self._planned[number], self._lanes_left[number]
        return planned


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
