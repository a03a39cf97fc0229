"""KV memory in shards, on either side of a hand-over: which regions exchange which ranges.

    ours (tp 2)      theirs (tp 4)
    region 0  <--->  regions 0, 1        a Cut each
    region 1  <--->  regions 2, 3

What moves is the planner's business (transfer/plan); here it is put in the messenger's
words: shapes, pairs of blocks, and the number of a region on either side.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pdgate.transfer import descriptors
from pdgate.transfer.base import Descriptor, Range
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.shape import Shape
from pdgate.transfer.plan import count
from pdgate.transfer.plan.agree import LayoutMismatch
from pdgate.transfer.plan.layout import KvLayout, Order, Rank
from pdgate.transfer.plan.links import spread
from pdgate.transfer.plan.meeting import End, Meeting
from pdgate.transfer.plan.memory import packed
from pdgate.transfer.plan.pair import Pair

REMEMBERED = 256
"""Pairs of shapes whose meeting is kept."""

MAX_TP = 1024
"""No engine has more; a peer that says so must not cost us a plan of that size."""

Blocks = Sequence[tuple[int, int]]
"""(source's, destination's): the same tokens."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Ranges between our region `ours` and the peer's region `theirs`."""

    ours: int
    theirs: int
    ranges: Sequence[Range]

    @property
    def total_bytes(self) -> int:
        return sum(one.length for one in self.ranges)


def pairs(source: Shape, destination: Shape, key: str) -> list[Pair]:
    """All shards that exchange something. `key` spreads the load over copies of a head.

    Raises HandOverError: wrong layout.
    """
    met = _meet(source, destination)
    choose = spread(key)
    return [pair for rank in met.destination.layout.ranks(0) for pair in met.to(rank, choose)]


def reads(source: Shape, destination: Shape, key: str, blocks: Blocks) -> list[Cut]:
    """What the destination reads: all layers. The blocks must be `Shape.check`ed."""
    ours, theirs = [to for _, to in blocks], [at for at, _ in blocks]
    tokens = range(len(blocks) * source.block_tokens)
    return [
        Cut(
            pair.link.destination.tp,
            pair.link.source.tp,
            pair.segments(theirs, ours, tokens).reads(),
        )
        for pair in pairs(source, destination, key)
    ]


def writes(between: Iterable[Pair], block_tokens: int, layer: int, blocks: Blocks) -> list[Cut]:
    """What the source writes of one layer."""
    ours, theirs = [at for at, _ in blocks], [to for _, to in blocks]
    tokens, layers = range(len(blocks) * block_tokens), range(layer, layer + 1)
    return [
        Cut(
            pair.link.source.tp,
            pair.link.destination.tp,
            pair.segments(ours, theirs, tokens, layers).writes(),
        )
        for pair in between
    ]


def senders(source: Shape, destination: Shape, shard: int) -> int:
    """How many of the source's shards write each tile to this shard of the destination.

    Raises HandOverError: wrong layout.
    """
    met = _meet(source, destination)
    return count.sources(met.source.layout, met.destination.layout, Rank(0, 0, shard))


def remotes(data: Sequence[Mapping[str, Any]], shape: Shape, backend: str) -> list[Descriptor]:
    """The peer's regions, one per shard. Raises HandOverError."""
    if len(data) != shape.tp:
        raise HandOverError(Why.WRONG_SHAPE, f"{len(data)} regions for tp {shape.tp}")
    try:
        found = [descriptors.from_data(one) for one in data]
    except ValueError as error:
        raise HandOverError(Why.BROKEN, str(error)) from None
    for one in found:
        if one.backend != backend:
            raise HandOverError(
                Why.UNSUPPORTED,
                f"{backend} here, {one.backend} there: both need the same transfer",
            )
        if one.length < shape.total_bytes:
            raise HandOverError(Why.WRONG_SHAPE, f"the region has only {one.length} bytes")
    return found


def _meet(source: Shape, destination: Shape) -> Meeting:
    try:
        return _meeting(source, destination)
    except (LayoutMismatch, ValueError) as error:
        raise HandOverError(Why.WRONG_SHAPE, str(error)) from None


@lru_cache(REMEMBERED)
def _meeting(source: Shape, destination: Shape) -> Meeting:
    return Meeting(_end(source), _end(destination))


def _end(shape: Shape) -> End:
    if shape.tp > MAX_TP:
        raise ValueError(f"tp {shape.tp} is more than {MAX_TP}")
    layout = KvLayout(
        model=shape.model,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        planes=2,
        dtype=shape.dtype,
        item_bytes=shape.item_bytes,
        order=Order.HND,
        block_tokens=shape.block_tokens,
        stages=(shape.layers,),
        tp=shape.tp,
    )
    memories = {rank: packed(layout, rank, shape.blocks) for rank in layout.ranks(0)}
    return End(layout, 0, memories, dict.fromkeys(memories, shape.total_bytes))
