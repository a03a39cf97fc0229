"""The numbers that have to agree before one engine may read the other's pages."""

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.parts import Blocks
from pdgate.transfer.plan.layout import LayoutOrder

Ranks = tuple[int, ...]
"""Of an engine, by the number of their region: those of the first stage first."""
ALL: Final[Ranks] = ()
"""Every rank there is."""

MUST_BE_EQUAL = ("model", "layers", "kv_heads", "head_dim", "planes", "dtype", "item_bytes")


class EnginePages(Protocol):
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
    @property
    def planes(self) -> int: ...


class PageShape(msgspec.Struct, frozen=True):
    """As it travels; peers may differ in `blocks`, `tp`, `stages`, and within limits more.

    A page is one run of bytes, K then V; the pages of a layer follow one another. There is
    a region per rank, those of the first stage first. Ranks of a stage split the heads, or
    share them if there are more ranks than heads.

    Attributes:
        planes: 2 for K and V, 1 for a latent that stands for both (MLA).
        order: Of heads and tokens in a page. None where only the engine knows what is in
            its pages: heads first, so they may be split over ranks, but both sides need
            the same block_tokens.
        stages: How many layers each pipeline stage holds; empty for one that holds all.
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
    planes: int = 2
    order: LayoutOrder | None = None
    stages: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        pages: EnginePages,
        model: str,
        *,
        order: LayoutOrder | None = None,
        stages: tuple[int, ...] = (),
    ) -> "PageShape":
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
            pages.planes,
            order=order,
            stages=stages,
        )

    @property
    def layers_by_stage(self) -> tuple[int, ...]:
        return self.stages or (self.layers,)

    @property
    def ranks(self) -> int:
        return len(self.layers_by_stage) * self.tp

    @property
    def token_bytes(self) -> int:
        """Of one layer at one rank."""
        heads = max(1, self.kv_heads // max(1, self.tp))
        return self.planes * heads * self.head_dim * self.item_bytes

    @property
    def page_bytes(self) -> int:
        """At one rank."""
        return self.block_tokens * self.token_bytes

    def region_bytes(self, rank: int) -> int:
        """That the pages of a rank take."""
        return self.layers_by_stage[rank // self.tp] * self.blocks * self.page_bytes

    def bytes_of(self, tokens: int) -> int:
        """At all ranks."""
        return self.layers * self.tp * tokens * self.token_bytes

    def part(self, block_ids: Sequence[int]) -> Blocks:
        """Of any rank's region: these blocks."""
        return Blocks(self.page_bytes, self.blocks, block_ids)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def check(self, block_ids: Sequence[int]) -> None:
        """Raises HandOverError for what is no block here."""
        for block_id in block_ids:
            if not 0 <= block_id < self.blocks:
                raise HandOverError(
                    Why.BAD_BLOCKS, f"block {block_id} of a peer that has {self.blocks}"
                )


def differences(ours: PageShape, theirs: PageShape) -> str:
    """ "head_dim 64 here, 128 there"; empty if pages of one fit the other."""
    wrong = [
        f"{name} {getattr(ours, name)} here, {getattr(theirs, name)} there"
        for name in MUST_BE_EQUAL
        if getattr(ours, name) != getattr(theirs, name)
    ]
    if (ours.order is None) != (theirs.order is None):
        wrong.append(f"order {ours.order or 'unsaid'} here, {theirs.order or 'unsaid'} there")
    small, large = sorted((ours.block_tokens, theirs.block_tokens))
    if small != large and (ours.order is None or small < 1 or large % small):
        wrong.append(f"block_tokens {ours.block_tokens} here, {theirs.block_tokens} there")
    return "; ".join(wrong)
