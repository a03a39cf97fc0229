"""One connection, fed by hand: whole answers, cut in any way, and what becomes of it."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdgate.gateway.upstream.exchange import BUFFER_BYTES
from tests.support.raw_server import chunk, chunked, reply
from tests.support.wire import Case

TRAILERS = chunked(b"one", b"two" * 100)[:-2] + b"x-checksum: 7\r\nx-other: 8\r\n\r\n"
CONTINUED = b"HTTP/1.1 100 Continue\r\nx-a: 1\r\n\r\n"
EARLY = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
UNTIL_EOF = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\nto the end"


ANSWERS = {
    "length": reply(b'{"a": 1}', b"200 OK", b"Content-Type: application/json"),
    "chunked": chunked(b"data: 1\n\n", b"data: 2\n\n"),
    "trailers": TRAILERS,
    "empty": reply(b""),
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "close": reply(b"bye", b"200 OK", b"connection: close"),
    "old": b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
    "continued": CONTINUED + EARLY + reply(b"done"),
    "error": reply(b'{"error": {}}', b"400 Bad Request"),
    "extra": reply(b"one") + reply(b"two"),
    "extra garbage": reply(b"one") + b"xyz",
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_does_not_depend_on_where_it_was_cut(
    loop: asyncio.AbstractEventLoop, name: str
) -> None:
    answer = ANSWERS[name]
    whole = Case(loop)
    whole.feed(answer, [])
    expected = whole.seen()
    assert expected[3] == "None"

    @given(st.lists(st.integers(0, len(answer)), max_size=12).map(sorted))
    def law(cuts: list[int]) -> None:
        case = Case(loop)
        case.feed(answer, cuts)
        # What comes after the message in a read of its own meets a free connection.
        assert case.seen()[:4] == expected[:4]

    law()
    for cut in range(1, len(answer)):
        case = Case(loop)
        case.feed(answer, [cut])
        assert case.seen()[:4] == expected[:4]
    bytewise = Case(loop)
    bytewise.feed(answer, list(range(1, len(answer))))
    assert bytewise.seen()[:4] == expected[:4]


@pytest.mark.parametrize("name", ["length", "chunked", "trailers", "empty", "continued", "error"])
def test_a_whole_answer_leaves_a_connection_for_the_next(
    loop: asyncio.AbstractEventLoop, name: str
) -> None:
    case = Case(loop)
    for uses in (1, 2, 3):
        case.feed(ANSWERS[name], [])
        assert case.wire.given_back == uses
        assert case.exchange.status in (200, 400)
        case.ask()


@pytest.mark.parametrize("name", ["close", "old", "extra", "extra garbage"])
def test_a_connection_that_cannot_be_trusted_is_not_used_again(
    loop: asyncio.AbstractEventLoop, name: str
) -> None:
    """Bytes after the message would be taken for the next call's answer."""
    case = Case(loop)
    case.feed(ANSWERS[name], [])

    assert case.wire.closing
    assert not case.wire.given_back


def test_interim_answers_leave_nothing_behind(loop: asyncio.AbstractEventLoop) -> None:
    case = Case(loop)
    case.feed(ANSWERS["continued"], [])

    assert case.seen()[:3] == (200, ((b"content-length", b"4"),), b"done")


def test_bytes_that_nobody_asked_for_close_a_free_connection(
    loop: asyncio.AbstractEventLoop,
) -> None:
    case = Case(loop)
    case.feed(reply(b"one"), [])
    case.connection.data_received(reply(b"two"))

    assert case.wire.closing


def test_an_answer_before_the_request_is_written_ends_the_connection(
    loop: asyncio.AbstractEventLoop,
) -> None:
    """The engine may never read the rest, and the next request would lie behind it."""
    case = Case(loop)
    case.wire.unsent = 1000
    case.feed(reply(b"too large", b"413 Too Large"), [])

    assert case.seen()[:3] == (413, ((b"content-length", b"9"),), b"too large")
    assert case.wire.closing
    assert not case.wire.given_back


def test_without_a_length_the_end_of_the_connection_ends_the_body(
    loop: asyncio.AbstractEventLoop,
) -> None:
    case = Case(loop)
    case.feed(UNTIL_EOF, [20])
    case.eof()

    assert case.seen()[2:4] == (b"to the end", "None")


def test_a_reset_does_not_end_a_body_without_length(loop: asyncio.AbstractEventLoop) -> None:
    case = Case(loop)
    case.feed(UNTIL_EOF, [])
    case.connection.connection_lost(ConnectionResetError())

    assert case.seen()[2:4] == (b"to the end", "the prefill engine broke off")


def test_pieces_of_one_read_leave_in_one_piece(loop: asyncio.AbstractEventLoop) -> None:
    case = Case(loop)
    chunks: list[bytes] = []
    case.exchange.start(case.result)
    case.result.on_data = chunks.append
    head = chunked().partition(b"0\r\n")[0]
    case.connection.data_received(head + chunk(b"a") + chunk(b"b"))
    case.connection.data_received(chunk(b"c"))

    assert chunks == [b"ab", b"c"]


def test_reading_stops_when_nobody_takes(loop: asyncio.AbstractEventLoop) -> None:
    case = Case(loop)
    size = 4 * BUFFER_BYTES
    answer = reply(b"x" * size)
    case.feed(answer[: BUFFER_BYTES + 1000], [])
    assert not case.wire.reading

    case.exchange.start(case.result)
    assert case.wire.reading

    case.exchange.pause()
    assert not case.wire.reading
    case.exchange.resume()
    case.feed(answer[BUFFER_BYTES + 1000 :], [])
    assert len(case.result.body) == size
    assert case.result.ends == [None]


def test_a_free_connection_reads(loop: asyncio.AbstractEventLoop) -> None:
    """It has to see the engine close; and what slows the old client is not its business."""
    case = Case(loop)
    case.feed(reply(b"x" * (BUFFER_BYTES + 1)), [])
    assert case.wire.given_back == 1
    assert case.wire.reading

    case.exchange.pause()
    assert case.wire.reading


def test_a_sink_may_leave_in_the_middle(loop: asyncio.AbstractEventLoop) -> None:
    case = Case(loop)
    case.exchange.start(case.result)
    case.result.on_data = lambda _: case.exchange._abandon()
    case.feed(reply(b"0123456789")[:-1], [])

    assert case.wire.closing
    assert not case.wire.given_back
    assert not case.result.ends
