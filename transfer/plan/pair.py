"""A source and a destination rank with all that does not depend on the call precomputed.

Both ends cut their blocks into units of min(block_tokens) tokens. What moves of one unit,
for one layer and plane, is always the same list of runs, the template; a segment is

    layer offset + plane * plane_stride + block * block_stride + unit within block + run

on either side, so a call adds arrays. The axes are nested as the source's memory is, and
units go in the order of the source's blocks, so that what can be merged is adjacent.

Cost on one core of a 2-core machine, for 2048 scattered blocks of which half of the heads
move: 0.6 ms for a layer (4096 segments), 5 ms for 32 layers (131 072); 0.05 ms to make the
pair. A list of `Range` takes longer than the plan: 2 and 100 ms.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from pdgate.transfer.base import TransferError
from pdgate.transfer.plan.layout import KvLayout, Order
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
        self._from = _Side(source, source_memory, self.unit_tokens)
        self._to = _Side(destination, destination_memory, self.unit_tokens)
        self._template = _template(source, destination, link, self.unit_tokens)
        self._source_layers = link.layers.start - source.layers_of(link.source).start
        self._destination_layers = link.layers.start - destination.layers_of(link.destination).start
        planes = np.arange(source.planes, dtype=np.int64)
        self._planes = (
            planes * source_memory.plane_stride,
            planes * destination_memory.plane_stride,
        )
        self._nesting = _nesting(source_memory)

    @property
    def segments_per_unit(self) -> int:
        """How many runs one unit of tokens takes for one layer and plane, before merging."""
        return len(self._template)

    def segments(
        self,
        source_blocks: Sequence[int],
        destination_blocks: Sequence[int],
        tokens: range,
        layers: range | None = None,
    ) -> Segments:
        """The bytes of these tokens. Both lists hold a sequence from its token 0 on.

        A last unit that is not full moves whole: its other places belong to the same blocks.

        Args:
            tokens: Starts at a multiple of `unit_tokens`.
            layers: Of the whole model; None for all that the two ranks share.

        Raises:
            BadBlocks: Nothing is to be moved then.
            ValueError: Tokens or layers that this pair does not move.
        """
        layers = self.link.layers if layers is None else layers
        if layers.start < self.link.layers.start or layers.stop > self.link.layers.stop:
            raise ValueError(f"{layers} of a pair that shares {self.link.layers}")
        if tokens.start % self.unit_tokens or tokens.start < 0:
            raise ValueError(f"{tokens} does not start at a multiple of {self.unit_tokens} tokens")
        units = np.arange(tokens.start // self.unit_tokens, -(-tokens.stop // self.unit_tokens))
        source = self._from.units(source_blocks, units, "source")
        destination = self._to.units(destination_blocks, units, "destination")
        _refuse_doubles(destination)
        by_place = np.argsort(source, kind="stable")
        first = layers.start - self.link.layers.start
        return Segments(
            self._spread(
                self._from.layers[self._source_layers + first :][: len(layers)],
                self._planes[0],
                source[by_place],
                self._template.source,
            ),
            self._spread(
                self._to.layers[self._destination_layers + first :][: len(layers)],
                self._planes[1],
                destination[by_place],
                self._template.destination,
            ),
            np.tile(self._template.length, len(layers) * len(self._planes[0]) * len(units)),
        ).merged()

    def _spread(
        self, layers: Offsets, planes: Offsets, units: Offsets, template: Offsets
    ) -> Offsets:
        axes = (layers, planes, units)
        outer, middle, inner = (axes[axis] for axis in self._nesting)
        places = outer[:, None, None] + middle[:, None] + inner
        return (places[..., None] + template).ravel()


class _Side:
    """Where layers and units are in the memory of one end."""

    def __init__(self, layout: KvLayout, memory: RankMemory, unit_tokens: int) -> None:
        heads_together = layout.rank_heads if layout.order is Order.NHD else 1
        self.layers: Offsets = np.array(memory.layer_offsets, np.int64)
        self._blocks = memory.blocks
        self._block_stride = memory.block_stride
        self._units_per_block = layout.block_tokens // unit_tokens
        self._unit_stride = unit_tokens * heads_together * layout.row_bytes

    def units(self, blocks: Sequence[int], units: Offsets, whose: str) -> Offsets:
        """Where each unit of the sequence is. Raises BadBlocks."""
        index, within = np.divmod(units, self._units_per_block)
        if len(units) and index[-1] >= len(blocks):
            raise BadBlocks(f"{len(blocks)} blocks at the {whose}, {index[-1] + 1} needed")
        # From the first block that is needed: what precedes it may be somebody else's.
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
    if layout.order is Order.HND:
        rows = heads * layout.block_tokens + places
    else:
        rows = places * layout.rank_heads + heads
    offsets: Offsets = rows.ravel() * layout.row_bytes
    return offsets


def _nesting(memory: RankMemory) -> list[int]:
    """The axes layer, plane, block, that with the longest stride first."""
    between_layers = min(
        (after - before for before, after in pairwise(sorted(memory.layer_offsets))), default=0
    )
    strides = (between_layers, memory.plane_stride, memory.block_stride)
    return sorted(range(3), key=lambda axis: -strides[axis])
