"""Layout of an engine's KV cache, and how it is split over its ranks.

A plane is what one block of tokens takes for one layer and one of K and V:

    HND  [kv_heads][block_tokens][head_dim]    a head's tokens lie together
    NHD  [block_tokens][kv_heads][head_dim]    a token's heads lie together

A rank is (data parallel, pipeline stage, tensor parallel). Data-parallel replicas share
nothing, so a call lives in one of them. A stage holds consecutive layers. Over tensor-
parallel ranks heads are split evenly, or, with more ranks than heads, ranks in a row hold
the same head: rank r has head r * kv_heads // tp.
Source: vLLM 0.32.0, model_executor/layers/linear.py, QKVParallelLinear.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class LayoutOrder(StrEnum):
    HND = "HND"
    NHD = "NHD"


@dataclass(frozen=True, slots=True)
class Rank:
    """Indices, from 0."""

    dp: int
    stage: int
    tp: int


@dataclass(frozen=True, slots=True)
class KvLayout:
    """
    Attributes:
        model: Which weights wrote the pages, so that no engine reads another model's.
        kv_heads: Of the whole model; 1 for a latent that all ranks share (MLA).
        head_dim: Elements of one token and head in one plane. Where K and V lie side by
            side, as in vLLM's CPU cache, that is both of them and `planes` is 1.
        planes: 2 where K and V lie apart, 1 for one of them (MLA).
        stages: How many layers each pipeline stage holds, first to last.
        tp, dp: How many ranks.
    """

    model: str
    kv_heads: int
    head_dim: int
    planes: int
    dtype: str
    item_bytes: int
    order: LayoutOrder
    block_tokens: int
    stages: tuple[int, ...]
    tp: int = 1
    dp: int = 1

    def __post_init__(self) -> None:
        """Raises ValueError for what no engine can have."""
        sizes = {
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "planes": self.planes,
            "item_bytes": self.item_bytes,
            "block_tokens": self.block_tokens,
            "tp": self.tp,
            "dp": self.dp,
            "stages": min(self.stages, default=0),
        }
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name} must be positive, not {size}")
        if self.kv_heads % self.tp and self.tp % self.kv_heads:
            raise ValueError(f"{self.kv_heads} KV heads cannot be split evenly over tp {self.tp}")

    @property
    def layers(self) -> int:
        return sum(self.stages)

    @property
    def parts(self) -> int:
        """Into how many different shares the heads are split."""
        return min(self.kv_heads, self.tp)

    @property
    def replicas(self) -> int:
        """How many ranks hold the same share."""
        return self.tp // self.parts

    @property
    def rank_heads(self) -> int:
        return self.kv_heads // self.parts

    @property
    def row_bytes(self) -> int:
        """One token of one head in one plane."""
        return self.head_dim * self.item_bytes

    @property
    def plane_bytes(self) -> int:
        """One block of one layer at one rank, K or V."""
        return self.rank_heads * self.block_tokens * self.row_bytes

    def part_heads(self, part: int) -> range:
        return range(part * self.rank_heads, (part + 1) * self.rank_heads)

    def part_holders(self, part: int) -> range:
        """Tensor-parallel ranks that hold this share."""
        return range(part * self.replicas, (part + 1) * self.replicas)

    def heads(self, rank: Rank) -> range:
        return self.part_heads(rank.tp // self.replicas)

    def stage_layers(self, stage: int) -> range:
        first = sum(self.stages[:stage])
        return range(first, first + self.stages[stage])

    def layers_of(self, rank: Rank) -> range:
        return self.stage_layers(rank.stage)

    def ranks(self, dp: int) -> Iterator[Rank]:
        """Of one data-parallel replica. Raises IndexError if there is none of this number."""
        if not 0 <= dp < self.dp:
            raise IndexError(f"data-parallel rank {dp} of {self.dp}")
        for stage in range(len(self.stages)):
            for tp in range(self.tp):
                yield Rank(dp, stage, tp)
