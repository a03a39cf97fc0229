"""KV memory in shards, on either side of a hand-over: which regions exchange which ranges.

    ours (tp 2)      theirs (tp 4)
    region 0  <--->  regions 0, 1        a Cut each
    region 1  <--->  regions 2, 3

What moves is the planner's business (transfer/plan); here it is put in the messenger's
words: shapes, and the number of a region on either side. A region is a rank's memory.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pdgate.transfer import descriptors
from pdgate.transfer.base import Descriptor, OutOfBounds, Range
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.shape import ALL, PageShape, Ranks, differences
from pdgate.transfer.plan import count
from pdgate.transfer.plan.agree import LayoutMismatch
from pdgate.transfer.plan.count import Rhythm
from pdgate.transfer.plan.layout import KvLayout, LayoutOrder, Rank
from pdgate.transfer.plan.links import spread
from pdgate.transfer.plan.meeting import EngineReplica, Meeting
from pdgate.transfer.plan.memory import packed
from pdgate.transfer.plan.pair import Pair

REMEMBERED = 256
"""Pairs of shapes whose meeting is kept."""

MAX_RANKS = 1024
"""No engine has more; a peer that says so must not cost us a plan of that size."""


@dataclass(frozen=True, slots=True)
class ShardCut:
    """Ranges between our region `ours` and the peer's region `theirs`."""

    ours: int
    theirs: int
    ranges: Sequence[Range]


def meet(ours: PageShape, theirs: PageShape) -> None:
    """May pages go from one to the other, in either direction? Raises HandOverError, which
    names what is in the way with both sides' numbers.
    """
    if wrong := differences(ours, theirs):
        raise HandOverError(Why.WRONG_SHAPE, wrong)
    _meet(ours, theirs)


def region(shape: PageShape, rank: Rank) -> int:
    """Its number."""
    return rank.stage * shape.tp + rank.tp


def numbers(ranks: Ranks, shape: PageShape) -> frozenset[int]:
    """Of these ranks, or of all that there are."""
    return frozenset(ranks or range(shape.ranks))


@dataclass(frozen=True, slots=True)
class Between:
    """Which ranks of both sides a conversation is about."""

    sources: Ranks = ALL
    destinations: Ranks = ALL


EVERY = Between()


def pairs(
    source: PageShape, destination: PageShape, key: str, between: Between = EVERY
) -> list[Pair]:
    """Ranks that exchange something. `key` spreads the load over copies of a head.

    Raises HandOverError: wrong layout.
    """
    met = _meet(source, destination)
    choose = spread(key)
    found = [pair for rank in met.destination.layout.ranks(0) for pair in met.to(rank, choose)]
    if between == EVERY:
        return found
    senders, takers = numbers(between.sources, source), numbers(between.destinations, destination)
    return [
        pair
        for pair in found
        if region(source, pair.link.source) in senders
        and region(destination, pair.link.destination) in takers
    ]


def reads(
    source: PageShape,
    destination: PageShape,
    key: str,
    blocks: tuple[Sequence[int], Sequence[int]],
    tokens: range,
    between: Between = EVERY,
) -> list[ShardCut]:
    """What the destination reads: all layers.

    `blocks` of the source and of the destination hold the sequence from its token 0 on.
    Raises HandOverError, BadBlocks.
    """
    return [
        ShardCut(
            region(destination, pair.link.destination),
            region(source, pair.link.source),
            pair.segments(*blocks, tokens).reads(),
        )
        for pair in pairs(source, destination, key, between)
    ]


def unit_tokens(one: PageShape, other: PageShape) -> int:
    """What moves, moves in multiples of it."""
    return min(one.block_tokens, other.block_tokens)


def layers(moving: Sequence[Pair]) -> range:
    """From the first to the last layer that these pairs share."""
    if not moving:
        return range(0)
    return range(
        min(pair.link.layers.start for pair in moving),
        max(pair.link.layers.stop for pair in moving),
    )


def moved_bytes(
    source: PageShape, destination: PageShape, tokens: range, moving: Sequence[Pair]
) -> int:
    """What these pairs move, a last unit that is not full included."""
    unit = unit_tokens(source, destination)
    rows = sum(len(pair.link.layers) * len(pair.link.heads) for pair in moving)
    row_bytes = destination.planes * destination.head_dim * destination.item_bytes
    return (-(-tokens.stop // unit) * unit - tokens.start) * rows * row_bytes


def rhythm(source: PageShape, destination: PageShape, wanted: Rhythm) -> Rhythm:
    """In which a push goes. Raises HandOverError: wrong layout."""
    met = _meet(source, destination)
    return count.fitting(met.source.layout, met.destination.layout, wanted)


def counts(
    moving: Sequence[Pair], destination: PageShape, tokens: range, beat: Rhythm
) -> Counter[int]:
    """How many writes of these pairs land in each region of the destination, by its number."""
    due: Counter[int] = Counter()
    for pair in moving:
        at = region(destination, pair.link.destination)
        due[at] += count.writes(pair.link.layers, tokens, beat)
    return due


def remotes(
    data: Sequence[Mapping[str, Any]], shape: PageShape, backend: str, ranks: Ranks = ALL
) -> dict[int, Descriptor]:
    """The peer's regions, one for each of these ranks of its. Raises HandOverError."""
    wanted = ranks or range(shape.ranks)
    if len(data) != len(wanted):
        raise HandOverError(Why.WRONG_SHAPE, f"{len(data)} regions for {len(wanted)} ranks")
    return {
        number: remote(one, shape.region_bytes(number), backend)
        for number, one in zip(wanted, data, strict=True)
    }


def remote(data: Mapping[str, Any], needed_bytes: int, backend: str) -> Descriptor:
    """One region of the peer's. Raises HandOverError."""
    try:
        found = descriptors.from_data(data)
    except ValueError as error:
        raise HandOverError(Why.BROKEN, str(error)) from None
    if found.backend != backend:
        raise HandOverError(
            Why.UNSUPPORTED,
            f"{backend} here, {found.backend} there: both need the same transfer",
        )
    if found.length < needed_bytes:
        raise HandOverError(
            Why.WRONG_SHAPE, f"the region has only {found.length} bytes, not {needed_bytes}"
        )
    return found


def _meet(source: PageShape, destination: PageShape) -> Meeting:
    try:
        return _meeting(source, destination)
    except (LayoutMismatch, OutOfBounds, ValueError) as error:
        raise HandOverError(Why.WRONG_SHAPE, str(error)) from None


@lru_cache(REMEMBERED)
def _meeting(source: PageShape, destination: PageShape) -> Meeting:
    return Meeting(_end(source), _end(destination))


def _end(shape: PageShape) -> EngineReplica:
    if shape.ranks > MAX_RANKS:
        raise ValueError(f"tp {shape.tp} and {len(shape.stages)} stages are too many")
    if sum(shape.layers_by_stage) != shape.layers:
        raise ValueError(f"stages of {list(shape.stages)} layers for {shape.layers} layers")
    layout = KvLayout(
        model=shape.model,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        planes=shape.planes,
        dtype=shape.dtype,
        item_bytes=shape.item_bytes,
        order=shape.order or LayoutOrder.HND,
        block_tokens=shape.block_tokens,
        stages=shape.layers_by_stage,
        tp=shape.tp,
    )
    memories = {rank: packed(layout, rank, shape.blocks) for rank in layout.ranks(0)}
    sizes = {rank: shape.region_bytes(region(shape, rank)) for rank in memories}
    return EngineReplica(layout, 0, memories, sizes)
