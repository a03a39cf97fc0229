"""Seats of an engine's ranks: which layers and heads each of them has. Pure.

number = stage * tp + tensor rank, as peers count (transfer/messenger/shards.py)
"""

from dataclasses import dataclass, replace
from itertools import accumulate

from pdgate.engine.layout import Layout


@dataclass(frozen=True, slots=True)
class RankSeat:
    """What a rank holds.

    Attributes:
        layers: Of the whole model.
        heads: KV heads of the whole model; ranks in a row have the same where there are too few.
    """

    number: int
    tensor_rank: int
    layers: range
    heads: range


def stages(layers: int, pp: int) -> tuple[int, ...]:
    """Return how many layers each pipeline stage has; empty for one stage. Raise ValueError."""
    if pp > layers:
        raise ValueError(f"{layers} layers cannot be split over {pp} pipeline stages")
    if pp == 1:
        return ()
    least, more = divmod(layers, pp)
    # As vLLM: the first stage embeds and the last one samples, so what is over goes in between.
    counts = [least] * pp
    for extra in range(more):
        counts[-2 - extra] += 1
    return tuple(counts)


def places(layout: Layout) -> list[RankSeat]:
    """Return the ranks' places, those of the first stage first."""
    counts = layout.stages or (layout.layers,)
    ends = accumulate(counts)
    held = [range(end - count, end) for end, count in zip(ends, counts, strict=True)]
    return [
        RankSeat(stage * layout.tp + rank, rank, layers, layout.shard_heads(rank))
        for stage, layers in enumerate(held)
        for rank in range(layout.tp)
    ]


def own_layout(layout: Layout, place: RankSeat) -> Layout:
    """Return the layout of the pages that this rank has, as if it were an engine."""
    return replace(layout, layers=len(place.layers), kv_heads=len(place.heads), tp=1, stages=())
