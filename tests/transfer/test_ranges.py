from hypothesis import given
from hypothesis import strategies as st

from pdgate.transfer.base import Range
from pdgate.transfer.ranges import merge

RANGES = st.lists(
    st.builds(Range, st.integers(0, 12), st.integers(0, 12), st.integers(0, 4)), max_size=12
)


def copied(ranges: list[Range]) -> list[tuple[int, int]]:
    """(local, remote) of every byte, in order."""
    return [(one.local + i, one.remote + i) for one in ranges for i in range(one.length)]


@given(RANGES)
def test_merging_copies_the_same_bytes_in_the_same_order(ranges: list[Range]) -> None:
    assert copied(merge(ranges)) == copied(ranges)


def test_only_what_touches_on_both_sides_is_merged() -> None:
    pages = [Range(0, 40, 4), Range(4, 44, 4), Range(8, 60, 4), Range(20, 64, 4)]

    assert merge(pages) == [Range(0, 40, 8), Range(8, 60, 4), Range(20, 64, 4)]


def test_empty_ranges_vanish() -> None:
    assert merge([Range(0, 0, 2), Range(9, 9, 0), Range(2, 2, 2)]) == [Range(0, 0, 4)]
