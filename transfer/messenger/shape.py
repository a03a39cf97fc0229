"""The numbers that have to agree before one engine may read the other's pages."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from pdgate.transfer.base import Range
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


class Shape(msgspec.Struct, frozen=True):
    """As it travels; `blocks` may differ between peers.

    A page is one run of bytes, K then V; the pages of a layer follow one another.
    """

    model: str
    layers: int
    blocks: int
    kv_heads: int
    block_tokens: int
    head_dim: int
    dtype: str
    item_bytes: int

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
        )

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
        if name != "blocks" and getattr(ours, name) != getattr(theirs, name)
    )


def ranges(ours: Shape, theirs: Shape, layer: int, pairs: Sequence[tuple[int, int]]) -> list[Range]:
    """Whole pages of one layer, for pairs of (our block, their block).

    The one place that knows that pages fit one to one: between engines that are sharded
    differently a page is cut into segments, and each becomes a range here.
    """
    return [
        Range(ours.page_offset(layer, mine), theirs.page_offset(layer, its), ours.page_bytes)
        for mine, its in pairs
    ]
