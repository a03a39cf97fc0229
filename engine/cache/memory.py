"""The pages themselves: arrays over memory that a transfer backend may have allocated.

`Layout` says where a page lies; this says the same as an array shape, so that what a
peer writes by offset is what the model reads by index.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pdgate.engine.layout import Layout
from pdgate.engine.model.weights import Floats


class KvMemory:
    """K and V of every layer and block, in each shard for its heads; or one plane for both.

    A shard is [layers, blocks, planes, shard_kv_heads, tokens, head_dim].

    Args:
        shards: `layout.tp` stretches of memory, each at least `layout.total_bytes` long.
    """

    def __init__(self, layout: Layout, shards: Sequence[memoryview]) -> None:
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
        self._shards = [
            np.frombuffer(shard, np.float32, count=count).reshape(shape) for shard in shards
        ]
        self._heads = [layout.shard_heads(shard) for shard in range(layout.tp)]

    def slots(
        self, block_ids: Sequence[int], start: int, count: int
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Block and place within it of the tokens [start, start + count)."""
        positions = np.arange(start, start + count)
        blocks = np.asarray(block_ids, np.intp)[positions // self.layout.block_tokens]
        return blocks, positions % self.layout.block_tokens

    def write(
        self,
        layer: int,
        slots: tuple[NDArray[np.intp], NDArray[np.intp]],
        planes: Sequence[Floats],
    ) -> None:
        """Into every shard its heads; each plane is [t, kv_heads, head_dim]."""
        blocks, places = slots
        for shard, heads in zip(self._shards, self._heads, strict=True):
            pages = shard[layer]
            for number, plane in enumerate(planes):
                pages[blocks, number, :, places] = plane[:, heads.start : heads.stop]

    def read(self, shard: int, layer: int, block_ids: Sequence[int], tokens: int) -> Floats:
        """The first `tokens` tokens, [planes, shard_kv_heads, tokens, head_dim]."""
        needed = self.layout.blocks_for(tokens)
        pages = self._shards[shard][layer]
        found = pages.take(np.asarray(block_ids[:needed], np.intp), axis=0)
        layout = self.layout
        by_head: Floats = found.transpose(1, 2, 0, 3, 4).reshape(
            layout.planes, layout.shard_kv_heads, -1, layout.head_dim
        )
        return by_head[:, :, :tokens]
