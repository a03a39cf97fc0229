"""Reads that are one chunk pass by the parser; nothing else may, wherever reads were cut."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdgate.gateway.upstream.connection import LONGEST, START_OF
from tests.support.raw_server import chunk, chunked
from tests.support.wire import Case

HEAD = chunked().partition(b"0\r\n")[0]

SPELLINGS = (b"%x\r\n", b"%X\r\n", b"00%x\r\n", b"%x;name=value\r\n")

INSIDE = (
    b"5\r\nhello\r\n",
    b"\r\n",
    b"a\r\n",
    b"0\r\n\r\n",
    b"data: 1\n\n",
    b"x" * 300,
    b"k\r\n" * 7,
)
"""Some look like chunks themselves."""


def test_a_length_says_which_chunk_it_would_be() -> None:
    for size in range(1, LONGEST - 6):
        written = chunk(b"x" * size)
        assert written.startswith(START_OF[len(written)])
        assert START_OF[len(written)]
    assert not START_OF[len(chunk(b""))]


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(INSIDE), min_size=1, max_size=3), st.sampled_from(SPELLINGS)
        ),
        max_size=6,
    ),
    st.data(),
)
def test_a_stream_does_not_depend_on_where_it_was_cut(
    pieces: list[tuple[list[bytes], bytes]], data: st.DataObject
) -> None:
    chunks, bodies = [], []
    for parts, spelling in pieces:
        bodies.append(b"".join(parts))
        chunks.append(spelling % len(bodies[-1]) + bodies[-1] + b"\r\n")
    whole = HEAD + b"".join(chunks) + b"0\r\n\r\n"
    # Between chunks, as engines write them, and anywhere else.
    borders, at = [len(HEAD)], len(HEAD)
    for written in chunks:
        at += len(written)
        borders.append(at)
    cuts = data.draw(st.lists(st.sampled_from(borders) | st.integers(0, len(whole)), unique=True))
    with asyncio.Runner() as runner:
        case = Case(runner.get_loop())
        case.exchange.start(case.result)
        case.feed(whole, sorted(cuts))

        assert case.result.body == b"".join(bodies)
        assert case.result.ends == [None]
        assert case.wire.given_back == 1


@pytest.fixture
def case(loop: asyncio.AbstractEventLoop) -> Case:
    """Its answer has begun, and its connection stands between two chunks."""
    case = Case(loop)
    case.exchange.start(case.result)
    case.connection.data_received(HEAD + chunk(b"first"))
    return case


def test_it_is_handed_on_as_it_came(case: Case) -> None:
    case.connection.data_received(chunk(b"data: 1\n\n"))

    assert case.result.framed == [b"", chunk(b"data: 1\n\n")]


@pytest.mark.parametrize(
    ("reads", "body"),
    [
        # What looks like a chunk inside of one is its body.
        (
            (b"1e\r\n", b"5\r\nhello\r\n", b"5\r\nhello\r\n", b"5\r\nhello\r\n", b"\r\n"),
            b"5\r\nhello\r\n" * 3,
        ),
        # The beginning of the next one came with the end of the last.
        ((chunk(b"second") + b"a\r\n", b"5\r\nhello\r\n", b"\r\n"), b"second5\r\nhello\r\n"),
        ((chunk(b"second") + b"1", b"5\r\n" + b"x" * 21, b"\r\n"), b"second" + b"x" * 21),
        # As long as a chunk would be, and its size is another.
        ((b"4\r\nabcd\r\n5\r\nhello\r\n",), b"abcdhello"),
    ],
)
def test_nothing_else_passes_by_the_parser(
    case: Case, reads: tuple[bytes, ...], body: bytes
) -> None:
    for read in reads:
        case.connection.data_received(read)
    case.connection.data_received(chunk(b"last") + b"0\r\n\r\n")

    assert case.result.body == b"first" + body + b"last"
    assert case.result.ends == [None]
    assert set(case.result.framed) == {b""}


def test_a_connection_that_is_used_again_begins_with_a_head(case: Case) -> None:
    case.connection.data_received(b"0\r\n\r\n")
    case.ask()
    case.connection.data_received(chunk(b"hello"))

    assert case.wire.closing
    assert case.exchange.status == 0
