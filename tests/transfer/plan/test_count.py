"""Both ends count the writes of a call alike, and neither asks the other."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdgate.transfer.plan.count import WHOLE, Chunks, Rhythm, fitting
from pdgate.transfer.plan.layout import KvLayout, Rank
from pdgate.transfer.plan.links import links_to, spread
from tests.support.kv_layouts import HEADS, PLAIN, engines, layouts
from tests.transfer.plan.writing import expected, writes


def sent(
    source: KvLayout, destination: KvLayout, tokens: range, rhythm: Rhythm, key: str
) -> Counter[Rank]:
    """What all source ranks together write, by destination."""
    return Counter(
        link.destination
        for to in destination.ranks(0)
        for link in links_to(source, 0, destination, to, spread(key))
        for _ in writes(link, tokens, rhythm)
    )


def awaited(
    source: KvLayout, destination: KvLayout, tokens: range, rhythm: Rhythm
) -> Counter[Rank]:
    return Counter(
        {to: expected(source, destination, to, tokens, rhythm) for to in destination.ranks(0)}
    )


@pytest.mark.parametrize("heads", HEADS)
def test_the_counts_are_equal_for_all_head_and_rank_numbers(heads: int) -> None:
    rhythm = Rhythm(chunk_tokens=4, by_layer=True)
    for source, destination in layouts(heads):
        assert sent(source, destination, range(10), rhythm, "k") == awaited(
            source, destination, range(10), rhythm
        )


@given(
    engines(),
    st.integers(0, 40),
    st.integers(1, 40),
    st.sampled_from([0, 24, 48]),
    st.booleans(),
    st.text(max_size=3),
)
def test_the_counts_are_equal_whatever_is_sent_and_by_whichever_replicas(
    pair: tuple[KvLayout, KvLayout], start: int, count: int, chunk: int, by_layer: bool, key: str
) -> None:
    tokens, rhythm = range(start, start + count), Rhythm(chunk, by_layer)

    assert sent(*pair, tokens, rhythm, key) == awaited(*pair, tokens, rhythm)


def test_a_push_after_prefill_is_one_write_per_source() -> None:
    source = replace(PLAIN, kv_heads=8, tp=4)
    destination = replace(PLAIN, kv_heads=8, tp=2)

    assert expected(source, destination, Rank(0, 0, 0), range(99), WHOLE) == 2


def test_a_push_by_layer_is_one_write_per_source_layer_and_chunk() -> None:
    source = replace(PLAIN, tp=2, stages=(3, 5))
    destination = replace(PLAIN, stages=(8,))

    rhythm = Rhythm(chunk_tokens=32, by_layer=True)

    assert expected(source, destination, Rank(0, 0, 0), range(16, 80), rhythm) == 2 * 8 * 3


def test_chunks_are_cut_by_a_grid_of_the_sequence() -> None:
    """A prefix that was cached shortens the first chunk and moves none."""
    assert list(Chunks(range(16, 80), 32)) == [range(16, 32), range(32, 64), range(64, 80)]


def test_nothing_to_send_is_nothing_to_wait_for() -> None:
    assert expected(PLAIN, PLAIN, Rank(0, 0, 0), range(8, 8), WHOLE) == 0


@pytest.mark.parametrize(
    ("wanted", "chunk_tokens"), [(0, 0), (1, 16), (16, 16), (17, 32), (32, 32)]
)
def test_chunks_do_not_cut_a_page_of_either_side(wanted: int, chunk_tokens: int) -> None:
    large = replace(PLAIN, block_tokens=16)

    for pair in ((PLAIN, large), (large, PLAIN)):
        assert fitting(*pair, Rhythm(wanted, True)) == Rhythm(chunk_tokens, True)
