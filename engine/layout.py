"""Layout of KV pages: every layer's, in one stretch of memory per shard.

    shard 0    layer 0: page 0, page 1, ...   layer 1: page 0, ...
    shard 1    the same, for other heads

A page holds K and then V of one block of tokens for one layer, heads before tokens
(HND): [2][shard_kv_heads][block_tokens][head_dim]. It is one contiguous run, so a block is
`layers` ranges of a shard, and the pages of one layer can travel before the next layer is
computed.

Shards split the heads as the ranks of tensor parallelism do; with more shards than KV
heads, shards in a row hold the same head.
"""

from dataclasses import dataclass

from pdgate.transfer.plan.layout import LayoutOrder


@dataclass(frozen=True, slots=True)
class Layout:
    """
    Attributes:
        kv_heads: Of the whole model.
        tp: How many shards.
        order: Of heads and tokens in a page. None where only the engine knows it: such pages
            can be split by heads, but not by tokens.
        planes: 2 for K and V, 1 where what they are is in one run (a latent, for one).
        stages: How many layers each pipeline stage holds; empty for one that holds all.
    """

    layers: int
    blocks: int
    kv_heads: int
    block_tokens: int
    head_dim: int
    dtype: str = "float32"
    item_bytes: int = 4
    tp: int = 1
    order: LayoutOrder | None = LayoutOrder.HND
    planes: int = 2
    stages: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Raises ValueError for heads that cannot be split evenly."""
        if self.tp < 1 or (self.kv_heads % self.tp and self.tp % self.kv_heads):
            raise ValueError(f"{self.kv_heads} KV heads cannot be split evenly over tp {self.tp}")

    @property
    def shard_kv_heads(self) -> int:
        return max(1, self.kv_heads // self.tp)

    @property
    def page_bytes(self) -> int:
        """Bytes of a page in one shard."""
        row_bytes = self.planes * self.head_dim * self.item_bytes
        return self.shard_kv_heads * self.block_tokens * row_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes of one shard."""
        return self.layers * self.blocks * self.page_bytes

    @property
    def block_bytes(self) -> int:
        """All layers and shards of one block."""
        return self.tp * self.layers * self.page_bytes

    def page_offset(self, layer: int, block_id: int) -> int:
        return (layer * self.blocks + block_id) * self.page_bytes

    def shard_heads(self, shard: int) -> range:
        """KV heads that this shard holds."""
        first = shard * self.kv_heads // self.tp
        return range(first, first + self.shard_kv_heads)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)
