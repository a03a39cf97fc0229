"""What broken and hostile engines send is a failure of theirs, and costs us little."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdgate.gateway.upstream.connection import MAX_HEAD_BYTES
from pdgate.protocols.errors import EngineFailed
from tests.support.raw_server import chunked, reply
from tests.support.wire import Case

CONTINUED = b"HTTP/1.1 100 Continue\r\nx-a: 1\r\n\r\n"

HALVES = {
    "nothing": b"",
    "half a head": b"HTTP/1.1 200 OK\r\ncont",
    "half a body": reply(b"0123456789")[:-3],
    "half a chunk": chunked(b"0123456789", kind=b"a/b")[:-10],
    "between chunks": chunked(b"one", b"two", kind=b"a/b")[:-5],
    "only 100": CONTINUED,
}


@pytest.mark.parametrize("name", HALVES)
def test_half_an_answer_is_a_failure(loop: asyncio.AbstractEventLoop, name: str) -> None:
    case = Case(loop)
    case.feed(HALVES[name], [])
    case.eof()
    case.exchange.start(case.result)

    (error,) = case.result.ends
    assert type(error) is EngineFailed
    assert error.at == "p0"
    assert str(error) == "the prefill engine broke off"
    assert error.broke_off


GARBAGE = {
    "no http": b"SSH-2.0-OpenSSH_9.2\r\n",
    "http 2": b"\x00\x00\x12\x04\x00\x00\x00\x00\x00",
    "bad length": b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
    "length and chunked": b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
    "bad chunk": chunked(b"one", kind=b"a/b")[:-5] + b"zz\r\n",
    "bad name": b"HTTP/1.1 200 OK\r\nbad name: 1\r\n\r\n",
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_a_failure_of_the_engine(loop: asyncio.AbstractEventLoop, name: str) -> None:
    case = Case(loop)
    case.feed(GARBAGE[name], [])
    case.exchange.start(case.result)

    (error,) = case.result.ends
    assert type(error) is EngineFailed
    assert "not HTTP" in str(error)
    assert not error.broke_off
    assert case.wire.closing


@given(data=st.binary(max_size=200))
def test_no_bytes_make_the_connection_raise(data: bytes) -> None:
    loop = asyncio.new_event_loop()
    try:
        case = Case(loop)
        case.feed(data, [])
        if not case.wire.closing:
            case.eof()
        case.seen()
        assert len(case.result.ends) == 1
    finally:
        loop.close()


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * MAX_HEAD_BYTES,
        b"HTTP/1.1 200 OK\r\n" + b"x: a\r\n" * (MAX_HEAD_BYTES // 5) + b"\r\n",
        CONTINUED * (MAX_HEAD_BYTES // len(CONTINUED) + 1),
    ],
    ids=["one line", "many lines", "endless interim answers"],
)
@pytest.mark.parametrize("step", [1 << 12, 1 << 20])
def test_a_head_has_a_limit(loop: asyncio.AbstractEventLoop, head: bytes, step: int) -> None:
    case = Case(loop)
    case.feed(head, list(range(step, len(head), step)))
    case.exchange.start(case.result)

    assert "too large a head" in str(case.result.ends[0])
    assert case.wire.closing


def test_a_large_body_behind_a_small_head_is_fine(loop: asyncio.AbstractEventLoop) -> None:
    case = Case(loop)
    case.feed(reply(b"x" * 3 * MAX_HEAD_BYTES), [])

    assert case.seen()[0] == 200


def test_a_switch_of_protocols_is_a_failure(loop: asyncio.AbstractEventLoop) -> None:
    case = Case(loop)
    case.feed(b"HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: x\r\n\r\nbytes", [])

    assert case.exchange.status == 101
    assert case.wire.closing
