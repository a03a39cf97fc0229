"""Two engines are checked when they meet, and then only block ids are needed."""

from dataclasses import replace

import pytest

from pdgate.transfer.base import OutOfBounds
from pdgate.transfer.plan.agree import LayoutMismatch
from pdgate.transfer.plan.layout import Rank
from pdgate.transfer.plan.links import spread
from pdgate.transfer.plan.meeting import Meeting
from tests.support.kv_layouts import PLAIN
from tests.support.kv_ranks import Arrays

PREFILL = replace(PLAIN, tp=2, dp=2)
DECODE = replace(PLAIN, tp=4, stages=(1, 1))
CHOOSE = spread("k")


def meeting() -> Meeting:
    return Meeting(Arrays.empty(PREFILL, dp=1).end, Arrays.empty(DECODE).end)


def test_each_link_of_two_engines_is_one_pair() -> None:
    met = meeting()

    pairs = [pair for to in DECODE.ranks(0) for pair in met.to(to, CHOOSE)]

    assert len(pairs) == len({pair.link for pair in pairs}) == 8


def test_what_was_worked_out_serves_the_next_call() -> None:
    met = meeting()
    to = Rank(0, 1, 3)

    assert list(met.to(to, CHOOSE)) == list(met.to(to, spread("another call")))


def test_engines_that_cannot_exchange_pages_do_not_meet() -> None:
    other = Arrays.empty(replace(PLAIN, head_dim=7))

    with pytest.raises(LayoutMismatch, match="head_dim 1 at the source, 7 at the destination"):
        Meeting(Arrays.empty(PLAIN).end, other.end)


def test_a_region_that_is_too_short_is_refused() -> None:
    end = Arrays.empty(PLAIN).end
    short = replace(end, region_bytes={Rank(0, 0, 0): 100})

    with pytest.raises(OutOfBounds, match="of a region that has 100"):
        Meeting(end, short)
    with pytest.raises(OutOfBounds, match="of a region that has 100"):
        Meeting(short, end)


def test_a_rank_without_memory_is_refused() -> None:
    end = Arrays.empty(DECODE).end
    some = {rank: one for rank, one in end.memories.items() if rank.tp != 2}

    with pytest.raises(OutOfBounds, match="has no memory"):
        Meeting(Arrays.empty(PLAIN).end, replace(end, memories=some))


def test_a_replica_that_is_not_there_is_refused() -> None:
    end = Arrays.empty(PREFILL, dp=1).end

    with pytest.raises(IndexError, match="data-parallel rank 2 of 2"):
        Meeting(replace(end, dp=2), Arrays.empty(DECODE).end)
