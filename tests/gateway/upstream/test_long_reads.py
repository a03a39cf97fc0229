"""Long reads of engines' answers: parsed in turns, and nothing more is read meanwhile."""

import asyncio
from collections.abc import Callable

import pytest

from pdgate.gateway.turns import ParseTurns, Taker
from pdgate.gateway.upstream.connection import MAX_HEAD_BYTES, SLICE_BYTES
from pdgate.gateway.upstream.exchange import BUFFER_BYTES
from pdgate.protocols import sse
from pdgate.protocols.apis import APIS
from pdgate.protocols.call import CHAT, Call
from pdgate.protocols.errors import EngineFailed, NoMemoryForAnswer
from tests.support.answers import opening, piece
from tests.support.raw_server import chunk
from tests.support.wire import CALL, Case, Wire

STREAMED = Call("c", "c-1", CHAT, {}, streams=True, api=APIS.get(CHAT))
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENTS = opening() + piece("a" * 50) * 400 + piece("", "stop") + sse.DONE
LAST = b"0\r\n\r\n"


class TurnsByHand(ParseTurns):
    def ask(self, taker: Taker, loop: asyncio.AbstractEventLoop) -> None:
        self._waiting.append(taker)

    def give(self) -> bool:
        """Whether one had its turn."""
        if not self._waiting:
            return False
        self._waiting.popleft().take_turn()
        return True


def asked(loop: asyncio.AbstractEventLoop) -> tuple[Case, TurnsByHand]:
    turns = TurnsByHand()
    case = Case(loop, wire=Wire(turns=turns), answers=STREAMED)
    case.connection.data_received(HEAD)
    case.exchange.start(case.result)
    return case, turns


def test_one_has_a_slice_in_each_turn(loop: asyncio.AbstractEventLoop) -> None:
    case, turns = asked(loop)
    assert len(EVENTS) > 4 * SLICE_BYTES

    case.connection.data_received(chunk(EVENTS) + LAST)

    assert not case.wire.reading
    assert case.result.body == b""
    before = 0
    while turns.give():
        assert len(case.result.body) - before <= SLICE_BYTES + len(piece("a" * 50))
        before = len(case.result.body)
    assert case.result.body == EVENTS
    assert case.result.ends == [None]
    assert case.wire.given_back
    assert case.wire.reading


def test_nothing_is_parsed_while_the_client_does_not_read(loop: asyncio.AbstractEventLoop) -> None:
    case, turns = asked(loop)
    case.connection.data_received(chunk(EVENTS))
    turns.give()
    so_far = case.result.body
    case.exchange.pause()
    assert turns.give()
    assert not turns.give()
    assert case.result.body == so_far

    case.exchange.resume()
    assert not case.wire.reading
    while turns.give():
        pass

    assert case.result.body == EVENTS
    assert case.wire.reading


def test_a_client_that_stops_reading_at_the_end_stops_the_engine(
    loop: asyncio.AbstractEventLoop,
) -> None:
    case, turns = asked(loop)
    case.result.on_data = lambda _: case.exchange.pause()
    case.connection.data_received(chunk(EVENTS))
    while case.result.body != EVENTS:
        case.exchange.resume()
        assert turns.give()
    assert not case.wire.reading

    case.exchange.resume()

    assert case.result.body == EVENTS
    assert case.wire.reading


def test_a_short_read_waits_where_others_do(loop: asyncio.AbstractEventLoop) -> None:
    case, turns = asked(loop)
    other = Case(loop, wire=Wire(turns=turns), answers=STREAMED)
    other.connection.data_received(HEAD)
    case.connection.data_received(chunk(EVENTS))

    other.connection.data_received(chunk(piece("b" * 3000)))

    assert not other.wire.reading
    while turns.give():
        pass
    assert other.wire.reading


def test_what_comes_behind_an_answer_ends_the_connection(loop: asyncio.AbstractEventLoop) -> None:
    case, turns = asked(loop)
    case.connection.data_received(chunk(EVENTS) + LAST + b"x" * SLICE_BYTES)
    while turns.give():
        pass

    assert case.result.ends == [None]
    assert case.wire.closing
    assert not case.wire.given_back


def test_a_client_that_leaves_takes_its_turns_along(loop: asyncio.AbstractEventLoop) -> None:
    case, turns = asked(loop)
    case.connection.data_received(chunk(EVENTS))
    turns.give()
    case.connection.abort()
    so_far = case.result.body

    while turns.give():
        pass

    assert case.result.body == so_far
    assert case.wire.closing


def closed(case: Case) -> None:
    """Of which a transport that speaks TLS tells at once, although it is to read no more."""
    case.eof()


def reset(case: Case) -> None:
    case.connection.connection_lost(ConnectionResetError())


@pytest.mark.parametrize("ends", [closed, reset])
def test_an_answer_that_came_before_the_end_of_its_connection_is_read(
    loop: asyncio.AbstractEventLoop, ends: Callable[[Case], None]
) -> None:
    """What waited for its turn was thrown away, and the engine said to have broken off."""
    case, turns = asked(loop)
    case.connection.data_received(chunk(EVENTS) + LAST)
    turns.give()

    ends(case)

    assert not case.connection.closed.done()
    while turns.give():
        pass
    assert case.result.body == EVENTS
    assert case.result.ends == [None]
    assert case.connection.closed.done()
    assert not case.wire.given_back


@pytest.mark.parametrize("ends", [closed, reset])
def test_an_answer_that_was_said_to_its_end_needs_no_last_chunk(
    loop: asyncio.AbstractEventLoop, ends: Callable[[Case], None]
) -> None:
    case, turns = asked(loop)
    case.connection.data_received(chunk(EVENTS))

    ends(case)

    while turns.give():
        pass
    assert case.result.body == EVENTS
    assert case.result.ends == [None]


@pytest.mark.parametrize("ends", [closed, reset])
def test_an_answer_that_is_cut_is_read_up_to_there(
    loop: asyncio.AbstractEventLoop, ends: Callable[[Case], None]
) -> None:
    case, turns = asked(loop)
    begun = opening() + piece("a" * 50) * 400
    case.connection.data_received(chunk(begun))

    ends(case)

    while turns.give():
        pass
    assert case.result.body == begun
    (error,) = case.result.ends
    assert type(error) is EngineFailed
    assert "broke off" in str(error)
    assert case.connection.closed.done()


@pytest.mark.parametrize("before", [True, False], ids=["meanwhile", "afterwards"])
def test_an_answer_that_ends_with_its_connection_ends_behind_its_last_turn(
    loop: asyncio.AbstractEventLoop, before: bool
) -> None:
    turns = TurnsByHand()
    case = Case(loop, wire=Wire(turns=turns), answers=CALL)
    body = b'{"a": "%b"}' % (b"a" * 3 * SLICE_BYTES)
    case.connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
    case.connection.data_received(body)

    case.connection.eof_received()
    if before:
        case.connection.connection_lost(None)
    while turns.give():
        pass

    case.exchange.start(case.result)
    assert case.result.body == body
    assert case.result.ends == [None]
    assert not case.wire.given_back
    if not before:
        case.connection.connection_lost(None)
    assert case.connection.closed.done()


def test_an_answer_that_ends_with_its_connection_and_is_reset_is_cut(
    loop: asyncio.AbstractEventLoop,
) -> None:
    turns = TurnsByHand()
    case = Case(loop, wire=Wire(turns=turns), answers=CALL)
    case.connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
    case.exchange.start(case.result)
    case.connection.data_received(b'{"a": "%b"}' % (b"a" * 3 * SLICE_BYTES))

    reset(case)
    while turns.give():
        pass

    assert isinstance(case.result.ends[0], EngineFailed)


def test_a_client_reads_what_came_before_the_end_as_slowly_as_it_likes(
    loop: asyncio.AbstractEventLoop,
) -> None:
    case, turns = asked(loop)
    case.result.on_data = lambda _: case.exchange.pause()
    case.connection.data_received(chunk(EVENTS) + LAST)
    turns.give()
    case.wire.closing = True
    case.eof()
    waited = 0
    while not case.result.ends:
        so_far = case.result.body
        turns.give()
        assert case.result.body == so_far
        case.exchange.resume()
        assert turns.give()
        waited += 1

    assert waited > 3
    assert case.result.body == EVENTS
    assert case.result.ends == [None]


def test_who_leaves_meanwhile_hears_no_more(loop: asyncio.AbstractEventLoop) -> None:
    case, turns = asked(loop)
    case.connection.data_received(chunk(EVENTS) + LAST)
    turns.give()
    so_far = case.result.body
    case.eof()

    case.connection.abort()

    assert case.connection.closed.done()
    while turns.give():
        pass
    assert case.result.body == so_far
    assert case.result.ends == []


def test_a_gateway_that_closes_waits_for_no_turn(loop: asyncio.AbstractEventLoop) -> None:
    case, turns = asked(loop)
    case.connection.data_received(chunk(EVENTS) + LAST)
    case.eof()

    case.connection.end()

    assert case.connection.closed.done()
    assert isinstance(case.result.ends[0], EngineFailed)
    while turns.give():
        pass
    assert case.result.body == b""


@pytest.mark.parametrize("endless", [b"0\r\na: ", b"0\r\n", b"1;a="], ids=str)
def test_what_is_no_piece_of_an_answer_is_bounded(
    loop: asyncio.AbstractEventLoop, endless: bytes
) -> None:
    """A trailer was kept, however long it was."""
    case = Case(loop, answers=STREAMED)
    case.connection.data_received(HEAD + chunk(opening()) + endless)
    case.exchange.start(case.result)
    sent = 0
    while not case.wire.closing and sent < 4 * MAX_HEAD_BYTES:
        case.connection.data_received(b"a: b\r\n" * 100 if endless == b"0\r\n" else b"b" * 1000)
        sent += 600

    (error,) = case.result.ends
    assert type(error) is EngineFailed
    assert "too much between" in str(error)


class Held:
    """Memory of answers."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.bytes = 0

    def take(self, more_bytes: int) -> bool:
        if self.bytes + more_bytes > self.most:
            return False
        self.bytes += more_bytes
        return True

    def give_back(self, bytes_: int) -> None:
        self.bytes -= bytes_


@pytest.mark.parametrize("end", ["an event", "a cut"])
def test_half_an_event_counts_until_it_is_whole(loop: asyncio.AbstractEventLoop, end: str) -> None:
    held = Held(8 << 20)
    case = Case(loop, answers=STREAMED, memory=held)
    case.connection.data_received(HEAD + chunk(opening()))
    case.exchange.start(case.result)
    for _ in range(8):
        case.connection.data_received(chunk(b":" * (BUFFER_BYTES // 2)))
    assert 1 << 20 <= held.bytes <= 2 << 20

    if end == "an event":
        case.connection.data_received(chunk(b"\n\n"))
    else:
        case.eof()

    assert held.bytes == 0


def test_half_an_event_without_memory_ends_its_answer(loop: asyncio.AbstractEventLoop) -> None:
    held = Held(1 << 20)
    case = Case(loop, answers=STREAMED, memory=held)
    case.connection.data_received(HEAD + chunk(opening()))
    case.exchange.start(case.result)
    while not case.wire.closing:
        case.connection.data_received(chunk(b":" * (BUFFER_BYTES // 2)))

    assert case.result.body == opening()
    assert isinstance(case.result.ends[0], NoMemoryForAnswer)
    assert held.bytes == 0
