"""The pages themselves: arrays over memory that a transfer backend may have allocated.

`Layout` says where a page lies; this says the same as an array shape, so that what a
peer writes by offset is what the model reads by index.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pdgate.engine.layout import Layout
from pdgate.engine.model import layers
from pdgate.engine.model.arrays import beside, floats, module, split, view
from pdgate.engine.model.weights import Floats

Slots = tuple[NDArray[np.intp], NDArray[np.intp]]
"""Block of each token, and its place in there."""


@dataclass(frozen=True, slots=True)
class TokenRun:
    """Tokens [start, start + count) of a sequence whose context lies in these blocks."""

    start: int
    count: int
    block_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Mix:
    """How a kind of attention mixes what is cached.

    Attributes:
        scale: Of scores; None for that of the queries' size.
        value_dim: How many numbers of the last plane's rows are values.
    """

    scale: float | None
    value_dim: int


class PagedKv(Protocol):
    """Pages of all layers, wherever they lie, as a model uses them."""

    @property
    def layout(self) -> Layout: ...

    def write(self, layer: int, slots: Slots, planes: Sequence[Floats]) -> None:
        """Put the rows of some tokens in their places; each plane is [t, kv_heads, head_dim]."""

    def attend(self, layer: int, queries: Floats, runs: Sequence[TokenRun], mix: Mix) -> Floats:
        """Mix values for the queries of all runs, [t, heads, d], to [t, heads * value_dim]."""
        ...


def slots(layout: Layout, runs: Sequence[TokenRun]) -> Slots:
    """Return where the tokens of all runs lie."""
    size = layout.block_tokens
    blocks, places = [], []
    for run in runs:
        positions = np.arange(run.start, run.start + run.count)
        blocks.append(np.asarray(run.block_ids, np.intp)[positions // size])
        places.append(positions % size)
    return np.concatenate(blocks), np.concatenate(places)


class KvMemory:
    """K and V of every layer and block, in each shard for its heads; or one plane for both.

    A shard is [layers, blocks, planes, shard_kv_heads, tokens, head_dim].

    Args:
        shards: `layout.tp` stretches of memory, each at least `layout.total_bytes` long; tensors of
            bytes where the model computes with tensors.
    """

    def __init__(self, layout: Layout, shards: Sequence[Any]) -> None:
        shape = (
            layout.layers,
            layout.blocks,
            layout.planes,
            layout.shard_kv_heads,
            layout.block_tokens,
            layout.head_dim,
        )
        count = layout.total_bytes // layout.item_bytes
        self.layout = layout
        self._bytes = shards
        self._shards = [floats(shard, count).reshape(shape) for shard in shards]
        self._heads = [layout.shard_heads(shard) for shard in range(layout.tp)]

    @property
    def views(self) -> Sequence[memoryview]:
        """The shards' bytes, where the host can touch them."""
        return [view(shard) for shard in self._bytes]

    def write(
        self,
        layer: int,
        slots: Slots,
        planes: Sequence[Floats],
    ) -> None:
        """Into every shard its heads; each plane is [t, kv_heads, head_dim]."""
        blocks, places = (beside(each, self._shards[0]) for each in slots)
        for shard, heads in zip(self._shards, self._heads, strict=True):
            pages = shard[layer]
            for number, plane in enumerate(planes):
                pages[blocks, number, :, places] = plane[:, heads.start : heads.stop]

    def read(self, shard: int, layer: int, block_ids: Sequence[int], tokens: int) -> Floats:
        """The first `tokens` tokens, [planes, shard_kv_heads, tokens, head_dim]."""
        needed = self.layout.blocks_for(tokens)
        pages = self._shards[shard][layer]
        found = pages[beside(np.asarray(block_ids[:needed], np.intp), pages)]
        layout = self.layout
        by_head: Floats = found.swapaxes(0, 1).swapaxes(1, 2)
        by_head = by_head.reshape(layout.planes, layout.shard_kv_heads, -1, layout.head_dim)
        return by_head[:, :, :tokens]

    def attend(self, layer: int, queries: Floats, runs: Sequence[TokenRun], mix: Mix) -> Floats:
        """Each shard's queries see that shard's keys only.

        So an answer is right only if every shard's pages are, copies of a head included.
        """
        parts = []
        row = 0
        for run in runs:
            parts.append(self._over_shards(layer, queries[row : row + run.count], run, mix))
            row += run.count
        return _joined(parts, axis=0)

    def _over_shards(self, layer: int, queries: Floats, run: TokenRun, mix: Mix) -> Floats:
        mixed = []
        for shard, asked in enumerate(split(queries, self.layout.tp, axis=1)):
            planes = self.read(shard, layer, run.block_ids, run.start + run.count)
            values = planes[-1][..., : mix.value_dim]
            mixed.append(layers.attention(asked, planes[0], values, run.start, mix.scale))
        return _joined(mixed, axis=1)


def _joined(parts: Sequence[Floats], axis: int) -> Floats:
    if len(parts) == 1:
        return parts[0]
    joined: Floats = module(parts[0]).concatenate(parts, axis=axis)
    return joined
