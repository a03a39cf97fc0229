from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdgate.engine.cache.allocator import Allocator, OutOfBlocks

TOTAL = 6


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("take"), st.integers(0, TOTAL)),
            st.tuples(st.sampled_from(["drop", "share", "keep"]), st.integers(0, 20)),
        )
    )
)
def test_blocks_are_never_lost_and_never_doubled(acts: list[tuple[str, int]]) -> None:
    """Whatever is done: free + used == total, and each owner counts."""
    forgotten: list[int] = []
    allocator = Allocator(TOTAL, forgotten.append)
    owners: list[int] = []
    for act, number in acts:
        match act:
            case "take" if number <= allocator.free:
                taken = allocator.take(number)
                assert not set(taken) & set(owners)
                owners += taken
            case "take":
                with pytest.raises(OutOfBlocks):
                    allocator.take(number)
            case "drop" if owners:
                allocator.drop([owners.pop(number % len(owners))])
            case "share" if owners:
                shared = owners[number % len(owners)]
                allocator.share([shared])
                owners.append(shared)
            case "keep" if owners:
                allocator.keep_contents(owners[number % len(owners)])
        assert allocator.used == len(Counter(owners))
        assert allocator.free + allocator.used == TOTAL


def test_idle_blocks_are_taken_last_and_the_oldest_first() -> None:
    forgotten: list[int] = []
    allocator = Allocator(3, forgotten.append)
    first, second, third = allocator.take(3)
    for block_id in (first, second):
        allocator.keep_contents(block_id)
    allocator.drop([second])
    allocator.drop([first])
    allocator.drop([third])

    assert allocator.take(2) == [second, third]
    assert forgotten == [second]


def test_a_block_without_an_owner_cannot_be_dropped() -> None:
    with pytest.raises(KeyError):
        Allocator(2).drop([0])
