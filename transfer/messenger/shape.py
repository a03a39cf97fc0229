"""The numbers that have to agree before one engine may read the other's pages."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from pdgate.transfer.messenger.errors import HandOverError, Why


class Pages(Protocol):
    """An engine's own description of its pages; a page is one block of one layer."""

    @property
    def layers(self) -> int: ...
    @property
    def blocks(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def block_tokens(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def item_bytes(self) -> int: ...
    @property
    def tp(self) -> int: ...


class Shape(msgspec.Struct, frozen=True):
    """As it travels; `blocks` and `tp` may differ between peers.

    A page is one run of bytes, K then V; the pages of a layer follow one another. There is
    a region per shard, and `tp` of them: they split the heads, or share them if there are
    more shards than heads.
    """

    model: str
    layers: int
    blocks: int
    kv_heads: int
    block_tokens: int
    head_dim: int
    dtype: str
    item_bytes: int
    tp: int = 1

    @classmethod
    def of(cls, pages: Pages, model: str) -> "Shape":
        return cls(
            model,
            pages.layers,
            pages.blocks,
            pages.kv_heads,
            pages.block_tokens,
            pages.head_dim,
            pages.dtype,
            pages.item_bytes,
            pages.tp,
        )

    @property
    def page_bytes(self) -> int:
        """In one shard."""
        return (
            2
            * max(1, self.kv_heads // max(1, self.tp))
            * self.block_tokens
            * self.head_dim
            * self.item_bytes
        )

    @property
    def total_bytes(self) -> int:
        """Of one shard."""
        return self.layers * self.blocks * self.page_bytes

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def check(self, block_ids: Sequence[int]) -> None:
        """Raises HandOverError for what is no block here."""
        for block_id in block_ids:
            if not 0 <= block_id < self.blocks:
                raise HandOverError(
                    Why.BAD_BLOCKS, f"block {block_id} of a peer that has {self.blocks}"
                )


def differences(ours: Shape, theirs: Shape) -> str:
    """ "head_dim 64 here, 128 there"; empty if pages of one fit the other."""
    return "; ".join(
        f"{name} {getattr(ours, name)} here, {getattr(theirs, name)} there"
        for name in Shape.__struct_fields__
        if name not in ("blocks", "tp") and getattr(ours, name) != getattr(theirs, name)
    )
