"""KV layouts to try: all numbers of heads and ranks, and any two engines that agree."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from hypothesis import strategies as st

from pdgate.transfer.plan.layout import KvLayout, LayoutOrder

PLAIN = KvLayout(
    model="m",
    kv_heads=4,
    head_dim=1,
    planes=2,
    dtype="int16",
    item_bytes=2,
    order=LayoutOrder.HND,
    block_tokens=4,
    stages=(2,),
)


HEADS = range(1, 17)
TP = range(1, 17)


def splits(heads: int) -> Iterator[int]:
    return (tp for tp in TP if heads % tp == 0 or tp % heads == 0)


def layouts(heads: int) -> Iterator[tuple[KvLayout, KvLayout]]:
    for source_tp in splits(heads):
        for destination_tp in splits(heads):
            yield (
                replace(PLAIN, kv_heads=heads, tp=source_tp),
                replace(PLAIN, kv_heads=heads, tp=destination_tp),
            )


@st.composite
def engines(draw: st.DrawFn) -> tuple[KvLayout, KvLayout]:
    heads = draw(st.integers(1, 8))
    layers = draw(st.integers(1, 5))
    block_tokens = draw(st.sampled_from([(1, 1), (4, 4), (2, 6), (6, 2), (1, 4), (8, 4)]))
    shared = replace(
        PLAIN, kv_heads=heads, planes=draw(st.integers(1, 2)), head_dim=draw(st.integers(1, 3))
    )

    def one(size: int) -> KvLayout:
        cuts = sorted(draw(st.sets(st.integers(1, layers - 1), max_size=3)) if layers > 1 else [])
        edges = [0, *cuts, layers]
        return replace(
            shared,
            tp=draw(st.sampled_from(list(splits(heads)))),
            order=draw(st.sampled_from(LayoutOrder)),
            stages=tuple(after - before for before, after in pairwise(edges)),
            block_tokens=size,
        )

    return one(block_tokens[0]), one(block_tokens[1])
