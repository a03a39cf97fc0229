"""A source and a destination rank with all that does not depend on the call precomputed.

Both ends cut their blocks into units of min(block_tokens) tokens. What moves of one unit
is always the same list of runs, the template; and what moves of some tokens is the same in
every layer, a Chunk. So on either side a run begins at

    layer offset + block * block_stride + unit within block + plane * plane_stride + run
    '- Chunk.of -'  '----------------------- Pair.chunk, once for all layers -----------'

and a push by layer plans each chunk once. Runs are in the order of the source's memory,
so that what can be merged is adjacent.

Cost on one core of a 2-core machine, for 128 scattered blocks of 16 tokens and 32 layers of
which half of the heads move: 0.2 ms in HND (8192 runs), 0.7 ms in NHD (131 072), and 1 ms
either way if they go by layer in chunks of 256 tokens. To make the pair takes 0.05 ms.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from pdgate.transfer.base import TransferError
from pdgate.transfer.plan.layout import KvLayout, LayoutOrder, Rank
from pdgate.transfer.plan.links import Link
from pdgate.transfer.plan.memory import RankMemory
from pdgate.transfer.plan.segments import Offsets, Segments


class BadBlocks(TransferError):
    """Block ids that do not exist, are too few, or take the same page twice."""


class Pair:
    """Immutable once made; any thread may use it.

    The layouts must `agree`, and each memory be one that `memory.check` let pass.
    """

    def __init__(
        self,
        source: KvLayout,
        source_memory: RankMemory,
        destination: KvLayout,
        destination_memory: RankMemory,
        link: Link,
    ) -> None:
        self.link = link
        self.unit_tokens = min(source.block_tokens, destination.block_tokens)
        self._from = _Side(source, source_memory, link.source, link, self.unit_tokens)
        self._to = _Side(destination, destination_memory, link.destination, link, self.unit_tokens)
        plane = _template(source, destination, link, self.unit_tokens)
        self._planes_outside = source_memory.plane_stride > source_memory.block_stride
        planes = np.arange(source.planes, dtype=np.int64)
        self._planes = (
            planes * source_memory.plane_stride,
            planes * destination_memory.plane_stride,
        )
        self._template = plane
        if not self._planes_outside:
            self._template = Segments(
                np.add.outer(self._planes[0], plane.source).ravel(),
                np.add.outer(self._planes[1], plane.destination).ravel(),
                np.tile(plane.length, len(planes)),
            ).merged()

    def segments(
        self,
        source_blocks: Sequence[int],
        destination_blocks: Sequence[int],
        tokens: range,
        layers: range | None = None,
    ) -> Segments:
        """The bytes of these tokens in some layers; None for all. Raises like `chunk`, `of`."""
        chunk = self.chunk(source_blocks, destination_blocks, tokens)
        return chunk.of(self.link.layers if layers is None else layers)

    def chunk(
        self, source_blocks: Sequence[int], destination_blocks: Sequence[int], tokens: range
    ) -> "PairChunk":
        """What of these tokens moves. Both lists hold a sequence from its token 0 on.

        A last unit that is not full moves whole: its other places belong to the same blocks.

        Args:
            tokens: Starts at a multiple of `unit_tokens`.

        Raises:
            BadBlocks: Nothing is to be moved then.
            ValueError: Tokens that this pair does not move.
        """
        if tokens.start % self.unit_tokens or tokens.start < 0:
            raise ValueError(f"{tokens} does not start at a multiple of {self.unit_tokens} tokens")
        units = np.arange(tokens.start // self.unit_tokens, -(-tokens.stop // self.unit_tokens))
        source = self._from.units(source_blocks, units, "source")
        destination = self._to.units(destination_blocks, units, "destination")
        _refuse_doubles(destination)
        by_place = np.argsort(source, kind="stable")
        template = self._template
        runs = Segments(
            self._spread(self._planes[0], source[by_place], template.source),
            self._spread(self._planes[1], destination[by_place], template.destination),
            np.tile(
                template.length, len(units) * (len(self._planes[0]) if self._planes_outside else 1)
            ),
        )
        return PairChunk(self.link.layers, self._from, self._to, runs.merged())

    def _spread(self, planes: Offsets, units: Offsets, template: Offsets) -> Offsets:
        places = np.add.outer(units, template)
        # Else the planes are in the template.
        return (np.add.outer(planes, places) if self._planes_outside else places).ravel()


class PairChunk:
    """Some tokens of a pair: runs from the start of a layer, the same in each."""

    def __init__(
        self, layers: range, source: "_Side", destination: "_Side", runs: Segments
    ) -> None:
        self._layers = layers
        self._from = source
        self._to = destination
        self._runs = runs

    def of(self, layers: range) -> Segments:
        """In these layers of the whole model. Raises ValueError if the pair does not share them."""
        if layers.start < self._layers.start or layers.stop > self._layers.stop:
            raise ValueError(f"{layers} of a pair that shares {self._layers}")
        runs = self._runs
        if len(layers) == 1:
            at = layers.start - self._layers.start
            return Segments(
                runs.source + self._from.layers[at],
                runs.destination + self._to.layers[at],
                runs.length,
            )
        here = slice(layers.start - self._layers.start, layers.stop - self._layers.start)
        offsets = self._from.layers[here], self._to.layers[here]
        if self._from.layers_outside:
            return Segments(
                np.add.outer(offsets[0], runs.source).ravel(),
                np.add.outer(offsets[1], runs.destination).ravel(),
                np.tile(runs.length, len(layers)),
            ).merged()
        return Segments(
            np.add.outer(runs.source, offsets[0]).ravel(),
            np.add.outer(runs.destination, offsets[1]).ravel(),
            np.repeat(runs.length, len(layers)),
        ).merged()


class _Side:
    """Where layers and units are in the memory of one end.

    Attributes:
        layers: Offsets of those that the link is about.
        layers_outside: A layer's blocks follow one another, rather than a block's layers.
    """

    def __init__(
        self, layout: KvLayout, memory: RankMemory, rank: Rank, link: Link, unit_tokens: int
    ) -> None:
        heads_together = layout.rank_heads if layout.order is LayoutOrder.NHD else 1
        first = link.layers.start - layout.layers_of(rank).start
        self.layers: Offsets = np.array(
            memory.layer_offsets[first : first + len(link.layers)], np.int64
        )
        between = min(
            (after - before for before, after in pairwise(sorted(memory.layer_offsets))), default=0
        )
        self.layers_outside = between > memory.block_stride
        self._blocks = memory.blocks
        self._block_stride = memory.block_stride
        self._units_per_block = layout.block_tokens // unit_tokens
        self._unit_stride = unit_tokens * heads_together * layout.row_bytes

    def units(self, blocks: Sequence[int], units: Offsets, whose: str) -> Offsets:
        """Where each unit of the sequence is. Raises BadBlocks."""
        index, within = np.divmod(units, self._units_per_block)
        if len(units) and index[-1] >= len(blocks):
            raise BadBlocks(f"{len(blocks)} blocks at the {whose}, {index[-1] + 1} needed")
        # From the first block that is needed: what precedes it may be another's.
        start = int(index[0]) if len(units) else 0
        stop = int(index[-1]) + 1 if len(units) else 0
        needed = blocks[start:stop]
        if needed and (min(needed) < 0 or max(needed) >= self._blocks):
            wrong = next(block for block in needed if not 0 <= block < self._blocks)
            raise BadBlocks(f"block {wrong} of a {whose} that has {self._blocks}")
        ids = np.array(needed, np.int64)
        places: Offsets = ids[index - start] * self._block_stride + within * self._unit_stride
        return places


def _refuse_doubles(places: Offsets) -> None:
    """Two units in one place would leave the later write's tokens in both."""
    if np.unique(places).size != places.size:
        raise BadBlocks("a block is named twice at the destination")


def _template(source: KvLayout, destination: KvLayout, link: Link, tokens: int) -> Segments:
    """The runs of one unit, one layer and one plane, from the start of the unit."""
    rows = Segments(
        _rows(source, link.heads.start - source.heads(link.source).start, link, tokens),
        _rows(
            destination, link.heads.start - destination.heads(link.destination).start, link, tokens
        ),
        np.full(len(link.heads) * tokens, source.row_bytes, np.int64),
    )
    order = np.argsort(rows.source, kind="stable")
    return Segments(rows.source[order], rows.destination[order], rows.length).merged()


def _rows(layout: KvLayout, first_head: int, link: Link, tokens: int) -> Offsets:
    """Where each (head, token) is, head by head."""
    heads = np.arange(first_head, first_head + len(link.heads), dtype=np.int64)[:, None]
    places = np.arange(tokens, dtype=np.int64)
    if layout.order is LayoutOrder.HND:
        rows = heads * layout.block_tokens + places
    else:
        rows = places * layout.rank_heads + heads
    offsets: Offsets = rows.ravel() * layout.row_bytes
    return offsets
