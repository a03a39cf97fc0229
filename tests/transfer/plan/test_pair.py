"""The right bytes, each once: moved in NumPy arrays and compared to a plain gather."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdgate.transfer.plan.layout import KvLayout, LayoutOrder, Rank
from pdgate.transfer.plan.pair import BadBlocks, Pair
from tests.support.kv_layouts import HEADS, PLAIN, engines, layouts
from tests.support.kv_ranks import BLOCKS, Arrays, cache, move, pairs_to, share

HND, NHD = LayoutOrder.HND, LayoutOrder.NHD


def arrives(
    source: KvLayout,
    destination: KvLayout,
    tokens: range,
    placements: tuple[int, int] = (0, 0),
    seed: int = 0,
) -> None:
    """Asserts that `tokens`, and nothing else but what shares a unit with them, have moved."""
    content = cache(source, tokens.stop)
    give = Arrays.empty(source, placement=placements[0])
    get = Arrays.empty(destination, placement=placements[1])
    ids = random.Random(seed)
    source_blocks = ids.sample(range(BLOCKS), -(-tokens.stop // source.block_tokens))
    blocks = ids.sample(range(BLOCKS), -(-tokens.stop // destination.block_tokens))
    give.fill(source_blocks, content)

    written = move(give, source_blocks, get, blocks, tokens)

    unit = min(source.block_tokens, destination.block_tokens)
    units = -(-tokens.stop // unit) - tokens.start // unit
    expected = content.copy()
    expected[:, :, :, : tokens.start] = 0
    for rank in destination.ranks(0):
        assert np.array_equal(
            get.gather(blocks, rank, tokens.stop), share(destination, rank, expected)
        )
        assert written[rank].max(initial=0) <= 1
        assert written[rank].sum() == (
            units
            * unit
            * len(destination.layers_of(rank))
            * destination.planes
            * destination.rank_heads
            * destination.row_bytes
        )


@pytest.mark.parametrize("heads", HEADS)
def test_all_head_and_rank_numbers_arrive_whole(heads: int) -> None:
    for number, (source, destination) in enumerate(layouts(heads)):
        orders = [(HND, HND), (NHD, NHD), (HND, NHD), (NHD, HND)][number % 4]
        arrives(
            replace(source, order=orders[0], block_tokens=2, stages=(1,)),
            replace(destination, order=orders[1], block_tokens=2, stages=(1,)),
            range(3),
            seed=number,
        )


@given(engines(), st.integers(0, 3), st.integers(0, 12), st.integers(0, 99), st.data())
def test_any_two_engines_that_agree_move_the_right_bytes(
    pair: tuple[KvLayout, KvLayout], skipped_units: int, rest: int, seed: int, data: st.DataObject
) -> None:
    source, destination = pair
    unit = min(source.block_tokens, destination.block_tokens)
    start = min(skipped_units * unit, 8 // unit * unit)
    stop = min(start + rest, BLOCKS * unit)
    placements = data.draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
    arrives(source, destination, range(start, stop), placements, seed)


def one_page(order: LayoutOrder, tokens: int = 128) -> Pair:
    """Half of the heads of one page, K only."""
    source = replace(PLAIN, order=order, block_tokens=tokens, planes=1, stages=(1,))
    get = Arrays.empty(replace(source, tp=2))
    (pair,) = pairs_to(Arrays.empty(source), get, Rank(0, 0, 1))
    return pair


@pytest.mark.parametrize(("order", "writes"), [(HND, 1), (NHD, 128)])
def test_a_page_of_128_tokens_sliced_by_heads(order: LayoutOrder, writes: int) -> None:
    assert len(one_page(order).segments([3], [5], range(128))) == writes


def test_a_slice_begins_where_its_heads_do() -> None:
    """Heads 2 and 3 of 4, 128 tokens of 2 bytes each, to the start of the page."""
    (one,) = one_page(HND).segments([3], [5], range(128)).writes()

    page = 4 * 128 * 2
    assert (one.local, one.remote, one.length) == (3 * page + page // 2, 5 * page // 2, page // 2)


def same() -> Pair:
    layout = replace(PLAIN, stages=(3,))
    (pair,) = pairs_to(Arrays.empty(layout), Arrays.empty(layout), Rank(0, 0, 0))
    return pair


def test_pages_in_a_row_are_one_run_per_layer() -> None:
    assert len(same().segments([4, 5, 6], [1, 2, 3], range(12))) == 3


def test_order_in_the_sequence_does_not_hinder_merging() -> None:
    assert len(same().segments([6, 5, 4], [3, 2, 1], range(12))) == 3


def test_the_whole_memory_is_one_run() -> None:
    blocks = list(range(BLOCKS))

    (one,) = same().segments(blocks, blocks, range(BLOCKS * 4)).writes()

    assert (one.local, one.remote) == (0, 0)


def test_planes_that_lie_apart_are_a_run_each() -> None:
    layout = replace(PLAIN, stages=(1,))
    ends = Arrays.empty(layout, placement=1), Arrays.empty(layout, placement=1)
    (pair,) = pairs_to(*ends, Rank(0, 0, 0))

    assert len(pair.segments([4, 5, 6], [1, 2, 3], range(12))) == 2


def test_a_read_is_a_write_seen_from_the_other_end() -> None:
    segments = same().segments([4, 7], [1, 2], range(8))

    assert [(one.local, one.remote, one.length) for one in segments.reads()] == [
        (one.remote, one.local, one.length) for one in segments.writes()
    ]


def test_layers_and_tokens_in_pieces_are_the_whole() -> None:
    """A push by layer and chunk writes the same bytes as one after the prefill."""
    pair = same()
    blocks, to = [9, 2, 5], [0, 7, 3]

    def bytes_of(tokens: range, layers: range | None = None) -> set[tuple[int, int]]:
        return {
            (one.local + i, one.remote + i)
            for one in pair.segments(blocks, to, tokens, layers).writes()
            for i in range(one.length)
        }

    pieces = [
        bytes_of(tokens, range(layer, layer + 1))
        for tokens in (range(4), range(4, 12))
        for layer in range(3)
    ]

    assert set().union(*pieces) == bytes_of(range(12))
    assert sum(map(len, pieces)) == len(bytes_of(range(12)))


def test_nothing_to_move_is_no_segments() -> None:
    """A prompt that the destination has cached already."""
    assert len(same().segments([], [], range(0))) == 0
    assert len(same().segments([1, 2], [1, 2], range(8, 8))) == 0


def bad(source: list[int], destination: list[int]) -> str:
    with pytest.raises(BadBlocks) as caught:
        same().segments(source, destination, range(8))
    return str(caught.value)


def test_blocks_that_do_not_exist_are_refused() -> None:
    assert bad([0, 12], [0, 1]) == "block 12 of a source that has 12"
    assert bad([0, 1], [-1, 1]) == "block -1 of a destination that has 12"
    assert bad([0, 1], [1 << 80, 1]).endswith("of a destination that has 12")


def test_too_few_blocks_are_refused() -> None:
    assert bad([0], [0, 1]) == "1 blocks at the source, 2 needed"


def test_a_destination_named_twice_is_refused() -> None:
    assert bad([0, 1], [5, 5]) == "a block is named twice at the destination"


def test_blocks_before_the_tokens_are_not_looked_at() -> None:
    """A cached prefix is the destination's own business."""
    assert len(same().segments([-1, 3], [99, 3], range(4, 8))) == 3


@pytest.mark.parametrize(("tokens", "layers"), [(range(2, 8), None), (range(8), range(4))])
def test_what_a_pair_does_not_move_is_refused(tokens: range, layers: range | None) -> None:
    with pytest.raises(ValueError, match="range"):
        same().segments([0, 1], [0, 1], tokens, layers)
