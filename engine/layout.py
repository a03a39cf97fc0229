"""Where the KV pages of every layer lie in one stretch of memory.

    layer 0: page 0, page 1, ...   layer 1: page 0, ...

A page holds K and then V of one block of tokens for one layer, heads before tokens
(HND): [2][kv_heads][block_tokens][head_dim]. It is one contiguous run, so a block is
`layers` ranges, and the pages of one layer can travel before the next layer is computed.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    layers: int
    blocks: int
    kv_heads: int
    block_tokens: int
    head_dim: int
    dtype: str = "float32"
    item_bytes: int = 4

    @property
    def page_bytes(self) -> int:
        return 2 * self.kv_heads * self.block_tokens * self.head_dim * self.item_bytes

    @property
    def total_bytes(self) -> int:
        return self.layers * self.blocks * self.page_bytes

    def page_offset(self, layer: int, block_id: int) -> int:
        return (layer * self.blocks + block_id) * self.page_bytes

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)
