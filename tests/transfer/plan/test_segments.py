"""Runs as arrays are the runs that a backend reads one by one."""

import struct
from dataclasses import replace

import numpy as np
import pytest

from pdgate.transfer.base import Range
from pdgate.transfer.plan.layout import Rank
from pdgate.transfer.plan.pair import Pair
from pdgate.transfer.plan.segments import Ranges, Segments
from tests.support.kv_layouts import PLAIN
from tests.support.kv_ranks import PLACEMENTS, Arrays, pairs_to

THREE = [Range(0, 40, 8), Range(16, 0, 8), Range(24, 8, 4)]


def arrays(*columns: list[int]) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    return [np.array(column, np.int64) for column in columns]


def ranges() -> Ranges:
    return Ranges(*arrays([0, 16, 24], [40, 0, 8], [8, 8, 4]))


def test_they_read_like_a_list() -> None:
    assert list(ranges()) == THREE
    assert (len(ranges()), ranges()[1], ranges()[-1]) == (3, THREE[1], THREE[2])
    assert list(ranges()[1:]) == THREE[1:]
    with pytest.raises(IndexError):
        ranges()[3]


def test_packed_they_are_the_same_numbers() -> None:
    assert list(struct.iter_unpack("<qqq", ranges().packed())) == [
        (one.local, one.remote, one.length) for one in THREE
    ]


def test_runs_merge_only_if_they_touch_on_both_sides() -> None:
    touching = Segments(*arrays([0, 8, 16], [40, 48, 0], [8, 8, 8])).merged()

    assert list(touching.writes()) == [Range(0, 40, 16), Range(16, 0, 8)]


@pytest.mark.parametrize("placement", range(len(PLACEMENTS)))
def test_a_chunk_that_is_planned_once_is_right_in_every_layer(placement: int) -> None:
    layout = replace(PLAIN, stages=(4,))
    ends = Arrays.empty(layout, placement=placement), Arrays.empty(layout, placement=placement)
    (pair,) = pairs_to(*ends, Rank(0, 0, 0))
    blocks, to = [9, 2, 5], [0, 7, 3]
    chunk = pair.chunk(blocks, to, range(4, 12))

    apart = [one for layer in range(4) for one in chunk.of(range(layer, layer + 1)).writes()]

    assert _bytes(apart) == _bytes(list(pair.segments(blocks, to, range(4, 12)).writes()))


def test_all_layers_of_a_block_in_a_row_are_one_run() -> None:
    """Where engines keep a block's layers together."""
    layout = replace(PLAIN, stages=(4,))
    ends = Arrays.empty(layout, placement=2), Arrays.empty(layout, placement=2)
    pair: Pair = pairs_to(*ends, Rank(0, 0, 0))[0]

    assert len(pair.segments([4, 5, 9], [1, 2, 3], range(12))) == 2


def _bytes(ranges: list[Range]) -> list[tuple[int, int]]:
    return sorted((one.local + i, one.remote + i) for one in ranges for i in range(one.length))
