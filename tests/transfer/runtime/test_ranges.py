from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdgate.transfer.base import OutOfBounds, Range
from pdgate.transfer.runtime.ranges import Piece, pieces, split

RANGES = st.lists(
    st.builds(Range, st.integers(0, 12), st.integers(0, 12), st.integers(0, 4)), max_size=12
)


def copied(found: list[Piece]) -> list[tuple[int, int]]:
    """(local, remote) of every byte, in order."""
    return [(local + i, remote + i) for local, remote, length in found for i in range(length)]


def merged(ranges: list[Range]) -> list[Piece]:
    """Where everything fits."""
    return pieces(ranges, 1000, 1000)


@given(RANGES)
def test_merging_copies_the_same_bytes_in_the_same_order(ranges: list[Range]) -> None:
    assert copied(merged(ranges)) == copied([(r.local, r.remote, r.length) for r in ranges])


@given(RANGES)
def test_no_two_neighbours_are_left_that_touch_on_both_sides(ranges: list[Range]) -> None:
    found = merged(ranges)

    for (local, remote, length), after in pairwise(found):
        assert (local + length, remote + length) != after[:2]


def test_only_what_touches_on_both_sides_is_merged() -> None:
    pages = [Range(0, 40, 4), Range(4, 44, 4), Range(8, 60, 4), Range(20, 64, 4)]

    assert merged(pages) == [(0, 40, 8), (8, 60, 4), (20, 64, 4)]


def test_empty_ranges_vanish() -> None:
    assert merged([Range(0, 0, 2), Range(9, 9, 0), Range(2, 2, 2)]) == [(0, 0, 4)]


@pytest.mark.parametrize("length", [0, 1])
@pytest.mark.parametrize(
    ("local", "remote", "who"), [(9, 0, "our"), (-1, 0, "our"), (0, 17, "peer"), (0, -1, "peer")]
)
def test_what_is_outside_is_refused_by_name_also_beside_good_neighbours(
    local: int, remote: int, who: str, length: int
) -> None:
    bad = Range(local, remote, length)

    with pytest.raises(OutOfBounds, match=f"local={local}, .* {who}"):
        pieces([Range(0, 0, 4), bad, Range(4, 4, 4)], 8, 16)


def test_the_last_byte_of_both_sides_is_inside() -> None:
    assert pieces([Range(7, 15, 1)], 8, 16) == [(7, 15, 1)]


def test_a_negative_length_is_no_way_to_reach_outside() -> None:
    """Merged with what follows it would look as if it lay inside."""
    with pytest.raises(OutOfBounds):
        pieces([Range(5, 5, -3), Range(2, 2, 3)], 8, 8)


@given(st.lists(st.integers(1, 30), max_size=20), st.integers(1, 5), st.integers(1, 40))
def test_shares_are_the_pieces_in_order_and_about_even(
    lengths: list[int], most: int, least: int
) -> None:
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    whole = [(at, 3 * at, length) for at, length in zip(starts, lengths, strict=True)]

    shares = split(whole, most, least)

    moved = [
        (local + i, remote + i)
        for share in shares
        for local, remote, length in share
        for i in range(length)
    ]
    assert moved == [(local + i, remote + i) for local, remote, n in whole for i in range(n)]
    sizes = [sum(length for _, _, length in share) for share in shares]
    assert 1 <= len(shares) <= most
    assert max(sizes) - min(sizes) <= 1
    assert len(shares) == 1 or min(sizes) >= least
