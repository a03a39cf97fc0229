"""Whatever an engine sends ends in an answer or in an error, the same however it was cut."""

import asyncio

from tests.fuzzing.cutting import cut
from tests.support.wire import Case

SEEDS = (
    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na;x=y\r\ndata: {}\n\n\r\n0\r\nx: y\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.0 200 OK\r\n\r\n{} until the end",
    b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\nx",
    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
)

_loop = asyncio.new_event_loop()


def check(data: bytes) -> None:
    whole, cut_up = _outcome([data]), _outcome(cut(data))
    assert whole == cut_up, f"as a whole {whole}, in pieces {cut_up}"


def _outcome(pieces: list[bytes]) -> tuple[object, ...]:
    case = Case(_loop)
    for piece in pieces:
        if not case.wire.closing and not case.wire.given_back:
            case.connection.data_received(piece)
    given_back = case.wire.given_back
    assert given_back <= 1
    # What an engine sends after its answer cuts it off, and is never the next one's.
    if not given_back:
        case.eof()
    seen = case.seen()
    assert case.result.ends, "neither an answer nor an error"
    return seen[:4]
