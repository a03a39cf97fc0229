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
    """K and V of every layer, block and head: [layers, blocks, 2, kv_heads, tokens, head_dim]."""

    def __init__(self, layout: Layout, memory: memoryview) -> None:
        shape = (
            layout.layers,
            layout.blocks,
            2,
            layout.kv_heads,
            layout.block_tokens,
            layout.head_dim,
        )
        flat = np.frombuffer(memory, np.float32, count=layout.total_bytes // layout.item_bytes)
        self.layout = layout
        self._pages = flat.reshape(shape)

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
        k: Floats,
        v: Floats,
    ) -> None:
        """k and v are [t, kv_heads, head_dim]."""
        blocks, places = slots
        pages = self._pages[layer]
        pages[blocks, 0, :, places] = k
        pages[blocks, 1, :, places] = v

    def read(self, layer: int, block_ids: Sequence[int], tokens: int) -> tuple[Floats, Floats]:
        """K and V of the first `tokens` tokens, each [kv_heads, tokens, head_dim]."""
        needed = self.layout.blocks_for(tokens)
        found = self._pages[layer].take(np.asarray(block_ids[:needed], np.intp), axis=0)
        kv_heads, head_dim = self.layout.kv_heads, self.layout.head_dim
        by_head = found.transpose(1, 2, 0, 3, 4).reshape(2, kv_heads, -1, head_dim)
        return by_head[0, :, :tokens], by_head[1, :, :tokens]
