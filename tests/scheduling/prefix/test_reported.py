import tracemalloc
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from pdgate.scheduling.prefix.reported import MOST_SETS, Reported

PLENTY = 1 << 30


def matched(reported: Reported, blocks: Sequence[int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for count, owners in reported.matched(blocks):
        assert not found or owners <= set(found), "who has more has what is before it"
        found.update(dict.fromkeys(owners, count))
    return found


some_blocks = st.lists(st.integers(0, 6), max_size=5)
steps = st.lists(
    st.tuples(
        st.sampled_from(["stored", "removed", "forget"]),
        st.sampled_from(["p0", "p1", "d0"]),
        some_blocks,
    ),
    max_size=25,
)


@given(steps, st.permutations(range(7)))
def test_it_says_what_every_engine_said(
    done: list[tuple[str, str, list[int]]], asked: list[int]
) -> None:
    reported = Reported(PLENTY)
    of: dict[str, set[int]] = {}
    for what, instance_id, blocks in done:
        theirs = of.setdefault(instance_id, set())
        if what == "stored":
            reported.stored(instance_id, blocks)
            theirs.update(blocks)
        elif what == "removed":
            reported.removed(instance_id, blocks)
            theirs.difference_update(blocks)
        else:
            reported.forget(instance_id)
            theirs.clear()

    expected = {}
    for instance_id, theirs in of.items():
        count = [*(block in theirs for block in asked), False].index(False)
        if count:
            expected[instance_id] = count
    assert matched(reported, asked) == expected
    assert reported.blocks == len(set().union(*of.values()))
    assert {i: reported.known(i) for i in of} == {i: len(theirs) for i, theirs in of.items()}


def test_what_does_not_fit_is_left_out_and_counted() -> None:
    """An engine removes what it removes; nobody here could say what it will miss least."""
    reported = Reported(2_000)
    reported.stored("p0", range(15))

    assert reported.bytes <= 2_000
    assert reported.refused == 5
    reported.removed("p0", [0])
    reported.stored("p0", [14])
    assert reported.refused == 5


def test_its_bytes_are_those_that_it_takes() -> None:
    blocks = [(number * 0x9E3779B97F4A7C15) % 2**64 for number in range(3000)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        reported = Reported(PLENTY)
        reported.stored("p0", blocks)
        # The numbers themselves are the reader's to make.
        taken = tracemalloc.get_traced_memory()[0] - before + 48 * len(blocks)
    finally:
        tracemalloc.stop()

    assert 0.5 < taken / reported.bytes < 1.1, (taken, reported.bytes)


def test_more_sets_of_owners_than_are_shared_are_right_all_the_same() -> None:
    reported = Reported(PLENTY)
    for number in range(MOST_SETS + 10):
        reported.stored(f"engine-{number}", [number])
    reported.stored("p0", range(MOST_SETS + 10))

    assert matched(reported, [MOST_SETS + 9]) == {"p0": 1, f"engine-{MOST_SETS + 9}": 1}
