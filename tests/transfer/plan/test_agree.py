"""What cannot be served is refused at the hand-shake, and the message says why."""

from dataclasses import replace
from typing import Any

import pytest

from pdgate.transfer.base import OutOfBounds
from pdgate.transfer.plan import memory
from pdgate.transfer.plan.agree import SAME, LayoutMismatch, agree
from pdgate.transfer.plan.layout import LayoutOrder, Rank
from pdgate.transfer.plan.memory import RankMemory
from tests.support.kv_layouts import PLAIN

OTHER = replace(
    PLAIN,
    model="n",
    kv_heads=8,
    head_dim=64,
    planes=1,
    dtype="bfloat16",
    item_bytes=4,
    stages=(3,),
)
RANK = Rank(0, 0, 0)


def test_every_difference_is_named_with_both_numbers() -> None:
    with pytest.raises(LayoutMismatch) as caught:
        agree(PLAIN, OTHER)

    for name in SAME:
        ours, theirs = getattr(PLAIN, name), getattr(OTHER, name)
        assert f"{name} {ours} at the source, {theirs} at the destination" in str(caught.value)


def test_block_sizes_must_divide_each_other() -> None:
    with pytest.raises(LayoutMismatch, match=r"block_tokens 4 at the source, 6 at the destination"):
        agree(PLAIN, replace(PLAIN, block_tokens=6))
    agree(PLAIN, replace(PLAIN, block_tokens=12))
    agree(replace(PLAIN, block_tokens=12), PLAIN)


def test_how_an_engine_splits_and_orders_its_pages_is_its_own_business() -> None:
    agree(PLAIN, replace(PLAIN, tp=8, dp=3, stages=(1, 1), order=LayoutOrder.NHD))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"tp": 3}, "4 KV heads cannot be split evenly over tp 3"),
        ({"tp": 0}, "tp must be positive, not 0"),
        ({"stages": ()}, "stages must be positive"),
        ({"stages": (2, 0)}, "stages must be positive"),
    ],
)
def test_a_layout_that_no_engine_can_have_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replace(PLAIN, **wrong)


def test_pages_must_lie_inside_the_region() -> None:
    one = memory.packed(PLAIN, RANK, 12)
    region_bytes = 12 * PLAIN.layers * PLAIN.planes * PLAIN.plane_bytes

    memory.check(PLAIN, RANK, one, region_bytes)
    with pytest.raises(OutOfBounds, match=f"of a region that has {region_bytes - 1}"):
        memory.check(PLAIN, RANK, one, region_bytes - 1)


@pytest.mark.parametrize(
    "wrong",
    [
        RankMemory(12, (0,), 32, 64),
        RankMemory(12, (0, 0, 0), 32, 64),
        RankMemory(0, (0, 768), 32, 64),
        RankMemory(12, (0, -768), 32, 64),
        RankMemory(12, (0, 768), -32, 64),
        RankMemory(12, (0, 768), 32, -64),
        RankMemory(1 << 70, (0, 768), 32, 64),
    ],
)
def test_memory_that_cannot_be_a_ranks_is_refused(wrong: RankMemory) -> None:
    with pytest.raises(OutOfBounds):
        memory.check(PLAIN, RANK, wrong, 1 << 20)
