"""Two engines in NumPy arrays: pages are written by shape here, and moved by offset there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pdgate.transfer.plan import memory
from pdgate.transfer.plan.layout import KvLayout, LayoutOrder, Rank
from pdgate.transfer.plan.links import spread
from pdgate.transfer.plan.meeting import EngineReplica, Meeting
from pdgate.transfer.plan.memory import RankMemory
from pdgate.transfer.plan.pair import Pair

Bytes = NDArray[np.uint8]
Cache = NDArray[np.uint8]
"""[layers, planes, kv_heads, tokens, row_bytes] of a whole model: what must arrive."""

BLOCKS = 12
CHOOSE = spread("any")


def cache(layout: KvLayout, tokens: int) -> Cache:
    """No two rows alike while there are fewer than 64K."""
    shape = (layout.layers, layout.planes, layout.kv_heads, tokens)
    rows = np.arange(1, np.prod(shape) + 1, dtype="<u2").reshape(*shape, 1).view(np.uint8)
    return np.tile(rows, layout.row_bytes // 2)


def split_planes(layout: KvLayout, rank: Rank, blocks: int) -> RankMemory:
    """[plane][layer][block], as in engines that keep K and V apart."""
    layers = len(layout.layers_of(rank))
    step = blocks * layout.plane_bytes
    return RankMemory(
        blocks, tuple(layer * step for layer in range(layers)), layers * step, layout.plane_bytes
    )


def blocks_outside(layout: KvLayout, rank: Rank, blocks: int) -> RankMemory:
    """[block][layer][plane], all that belongs to a block in one run."""
    layers = len(layout.layers_of(rank))
    page = layout.planes * layout.plane_bytes
    offsets = tuple(layer * page for layer in range(layers))
    return RankMemory(blocks, offsets, layout.plane_bytes, layers * page)


PLACEMENTS = (memory.packed, split_planes, blocks_outside)


@dataclass(frozen=True, slots=True)
class Arrays:
    """The memory of every rank of one engine."""

    layout: KvLayout
    memories: Mapping[Rank, RankMemory]
    regions: Mapping[Rank, Bytes]

    @classmethod
    def empty(cls, layout: KvLayout, dp: int = 0, placement: int = 0) -> "Arrays":
        memories = {rank: PLACEMENTS[placement](layout, rank, BLOCKS) for rank in layout.ranks(dp)}
        regions = {
            rank: np.zeros(memory.end(layout, one), np.uint8) for rank, one in memories.items()
        }
        return cls(layout, memories, regions)

    @property
    def end(self) -> EngineReplica:
        sizes = {rank: len(region) for rank, region in self.regions.items()}
        return EngineReplica(self.layout, next(iter(self.regions)).dp, self.memories, sizes)

    def view(self, rank: Rank, layer: int, plane: int, block: int) -> Bytes:
        """[heads, tokens, row_bytes] of one page, whatever the order; `layer` is the rank's own."""
        layout, one = self.layout, self.memories[rank]
        start = one.layer_offsets[layer] + plane * one.plane_stride + block * one.block_stride
        raw = self.regions[rank][start : start + layout.plane_bytes]
        if layout.order is LayoutOrder.HND:
            return raw.reshape(layout.rank_heads, layout.block_tokens, layout.row_bytes)
        by_token = raw.reshape(layout.block_tokens, layout.rank_heads, layout.row_bytes)
        return by_token.transpose(1, 0, 2)

    def fill(self, blocks: Sequence[int], content: Cache) -> None:
        tokens = content.shape[3]
        for rank in self.regions:
            mine = share(self.layout, rank, content)
            for index, layer, plane, at, width in self._pages(rank, tokens):
                page = self.view(rank, layer, plane, blocks[index])
                page[:, :width] = mine[layer, plane, :, at : at + width]

    def gather(self, blocks: Sequence[int], rank: Rank, tokens: int) -> Cache:
        """What one rank holds: [its layers, planes, its heads, tokens, row_bytes]."""
        layout = self.layout
        found = np.zeros(
            (
                len(layout.layers_of(rank)),
                layout.planes,
                layout.rank_heads,
                tokens,
                layout.row_bytes,
            ),
            np.uint8,
        )
        for index, layer, plane, at, width in self._pages(rank, tokens):
            page = self.view(rank, layer, plane, blocks[index])
            found[layer, plane, :, at : at + width] = page[:, :width]
        return found

    def _pages(self, rank: Rank, tokens: int) -> list[tuple[int, int, int, int, int]]:
        """(index of the block, layer, plane, first token, tokens) of each page."""
        size = self.layout.block_tokens
        return [
            (index, layer, plane, index * size, min(size, tokens - index * size))
            for index in range(-(-tokens // size))
            for layer in range(len(self.layout.layers_of(rank)))
            for plane in range(self.layout.planes)
        ]


def share(layout: KvLayout, rank: Rank, content: Cache) -> Cache:
    """The reference: what a rank has to hold of the whole cache."""
    layers, heads = layout.layers_of(rank), layout.heads(rank)
    return content[layers.start : layers.stop, :, heads.start : heads.stop]


def pairs_to(source: Arrays, to: Arrays, rank: Rank) -> list[Pair]:
    return list(Meeting(source.end, to.end).to(rank, CHOOSE))


def move(
    source: Arrays,
    source_blocks: Sequence[int],
    to: Arrays,
    blocks: Sequence[int],
    tokens: range,
) -> dict[Rank, NDArray[np.uint8]]:
    """Copies; how often each byte of each destination region was written."""
    written = {rank: np.zeros(len(region), np.uint8) for rank, region in to.regions.items()}
    for rank, region in to.regions.items():
        for pair in pairs_to(source, to, rank):
            for one in pair.segments(source_blocks, blocks, tokens).writes():
                landing = slice(one.remote, one.remote + one.length)
                taken = source.regions[pair.link.source][one.local : one.local + one.length]
                region[landing] = taken
                written[rank][landing] += 1
    return written
