"""Of calls that cannot all be in time the longest go last, so that as many as can be are."""

from collections.abc import Sequence
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from pdgate.scheduling.admission import LinePlace
from pdgate.scheduling.admission.longest import longest_of

TOKENS_PER_SECOND = 128.0
"""A power of two, so that sums of times are exact: a call that begins just when it is due is in time in whatever order
they are added."""

WAITING = st.lists(
    st.tuples(st.integers(1, 500), st.integers(0, 1500)), min_size=1, max_size=7
).map(lambda rows: list(zip((t for t, _ in rows), sorted(due for _, due in rows), strict=True)))


def in_time(places: Sequence[LinePlace]) -> bool:
    now = 0.0
    for place in places:
        if now > place.due:
            return False
        now += place.tokens / TOKENS_PER_SECOND
    return True


@given(WAITING)
def test_no_choice_has_more_of_them_in_time(rows: list[tuple[int, int]]) -> None:
    places = [LinePlace(tokens=tokens, due=due / TOKENS_PER_SECOND) for tokens, due in rows]

    last = longest_of(places, 0.0, TOKENS_PER_SECOND)

    kept = [place for place in places if place not in last]
    assert in_time(kept)
    more = len(kept) + 1
    assert not any(in_time(chosen) for chosen in combinations(places, more))
