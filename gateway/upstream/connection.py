"""Connection to an engine: HTTP/1.1 answers in, heads, body pieces and ends out.

The parser's callbacks only note what they saw. `data_received` passes it on when the
parser is done with a read, so that what came in one read leaves in one piece, and a
connection is used again only if nothing came after the message.

Nearly every event of a stream is a read of its own and just one chunk, which its length and its
ends tell. Such a read passes by the parser, which stays between two chunks:

    b"fa\\r\\n" + 250 bytes + b"\\r\\n"

A chunk of n bytes takes n, the digits of n, and two line ends. That grows with n, so how long a
read is says which chunk it would be, and how that one begins. A read as long that begins so and
ends with a line end is that chunk (RFC 9112, section 7.1): its end is where it said. Only the usual
spelling is known, lower case without zeros or extensions; others are left to the parser, and so is
the last chunk, of no bytes.

A long read is parsed in slices, in turn with those of other connections (gateway/turns.py), and no more is read
meanwhile: a socket that is full again each time would be read 32 times in a row, of 256 KB each (libuv, uv__read),
and what an engine writes can cost a hundred times what it costs to read.

    data_received --long--> _rest --take_turn--> a slice --> parser
                              \\__ nothing is read until all of it is parsed, nor parsed while the exchange pauses

A transport that speaks TLS says in that same read that the engine has closed behind it, and that all is over. What
waits is parsed all the same, and only then the answer ends as its connection did.

Answers 1xx are skipped (RFC 9110, section 15.2), except 101, which we never ask for.
"""

import asyncio
from typing import Final, cast

from httptools import (
    HttpParserCallbackError,
    HttpParserError,
    HttpParserUpgrade,
    HttpResponseParser,
)

from pdgate.gateway.upstream.contracts import Home, StaleConnection
from pdgate.gateway.upstream.exchange import Exchange
from pdgate.protocols.call import Headers

MAX_HEAD_BYTES: Final = 64 << 10
JOIN_BYTES: Final = 64 << 10

LONGEST: Final = 2048
"""Read that is looked at, in bytes; events are much shorter."""

SLICE_BYTES: Final = 16 << 10
"""Of a longer read, in one turn: 8,000 events of the shortest kind, which take 20 ms."""


def _starts() -> tuple[bytes, ...]:
    starts = [b""] * (LONGEST + 1)
    for size in range(1, LONGEST):
        start = b"%x\r\n" % size
        length = len(start) + size + 2
        if length <= LONGEST:
            starts[length] = start
    return tuple(starts)


START_OF: Final = _starts()
"""Length of a read -> how it begins if it is one chunk; empty where none is so long."""


class UpstreamConnection(asyncio.Protocol):
    """
    Attributes:
        idle_since: Loop time at which it became free.
        closed: Done when the connection is gone, and nothing of what has come waits.
        transport: Of its socket; one that is closing is of no more use.
    """

    __slots__ = (
        "_asked_turn",
        "_at",
        "_between_chunks",
        "_chunk_over",
        "_complete",
        "_eof",
        "_exchange",
        "_head_bytes",
        "_headers",
        "_home",
        "_in_head",
        "_keep_alive",
        "_loop",
        "_lost",
        "_mute_bytes",
        "_parser",
        "_paused",
        "_pieces",
        "_rest",
        "_status",
        "_surplus",
        "_told",
        "_used_before",
        "_waits",
        "closed",
        "idle_since",
        "transport",
    )

    _between_chunks: bool
    _chunk_over: bool
    _complete: bool
    _head_bytes: int
    _headers: list[tuple[bytes, bytes]]
    _in_head: bool
    _keep_alive: bool
    _mute_bytes: int
    _pieces: list[bytes]
    _status: int
    _surplus: bool
    _told: bool
    transport: asyncio.Transport

    def __init__(self, home: Home, loop: asyncio.AbstractEventLoop) -> None:
        self.idle_since = 0.0
        self.closed: asyncio.Future[None] = loop.create_future()
        self._home = home
        self._loop = loop
        self._parser = HttpResponseParser(self)
        self._exchange: Exchange | None = None
        self._used_before = False
        self._paused = False
        # Of a long read: what has come, up to where it is parsed, and whether not all of it is.
        self._rest = b""
        self._at = 0
        self._waits = False
        self._asked_turn = False
        # The engine says no more; and there is no connection any more.
        self._eof = False
        self._lost = False
        self._status = 0
        self._keep_alive = False
        # Never cleared: one with more than its answer is not used again.
        self._surplus = False
        self._reset()

    def send(self, exchange: Exchange, head: bytes, body: bytes) -> None:
        self._exchange = exchange
        if len(body) < JOIN_BYTES:
            self.transport.write(head + body)
        else:
            self.transport.writelines((head, body))

    def abort(self) -> None:
        """Closes at once, whatever is still to be written; the exchange hears nothing."""
        self._exchange = None
        self._drop_rest()
        self.transport.abort()

    def end(self) -> None:
        """Closes at once, and an exchange under way fails."""
        if self._exchange is not None:
            self._exchange.broken("was left: the gateway is closing")
        self._drop_rest()
        self.transport.abort()

    def pause(self) -> None:
        if not self._paused and (self._waits or not self.transport.is_closing()):
            self._paused = True
            if not self._waits:
                self.transport.pause_reading()

    def resume(self) -> None:
        if self._paused and (self._waits or not self.transport.is_closing()):
            self._paused = False
            if self._waits:
                self._ask_turn()
            else:
                self.transport.resume_reading()

    def take_turn(self) -> None:
        """Parses the next slice of what has come."""
        self._asked_turn = False
        exchange = self._exchange
        if self._paused or not self._waits or exchange is None:
            return
        start = self._at
        end = self._at = start + SLICE_BYTES
        self._feed(exchange, self._rest[start:end])
        # The answer may be over, or its reader have left.
        if not self._still_waits():
            return
        if end < len(self._rest):
            if not self._paused:
                self._ask_turn()
            return
        self._drop_rest()
        if self._eof or self._lost:
            self._end_behind(exchange)
        elif not self._paused and not self.transport.is_closing():
            self.transport.resume_reading()

    # asyncio calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit asyncio's classes. Both loops set TCP_NODELAY.
        self.transport = cast(asyncio.Transport, transport)
        self._home.made(self)

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            # No request was sent: whatever it is, it looks like the next answer.
            self.transport.abort()
            return
        length = len(data)
        if self._between_chunks and length <= LONGEST:
            start = START_OF[length]
            if start and data.startswith(start) and data.endswith(b"\r\n"):
                exchange.on_body(data[len(start) : -2], length, data)
                return
        if self._waits or (
            length > LONGEST and (length > SLICE_BYTES or self._home.turns.contended)
        ):
            self._keep(data)
        else:
            self._feed(exchange, data)

    def _feed(self, exchange: Exchange, data: bytes) -> None:
        garbage = False
        try:
            self._parser.feed_data(data)
        except HttpParserCallbackError:
            raise
        except (HttpParserError, HttpParserUpgrade):
            garbage = True
        if not self._told:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and self._too_long():
                exchange.broken("sent too large a head")
                return
            if not self._in_head:
                if self._complete:
                    status, headers, pieces = self._status, self._headers, self._pieces
                    self._finish(self._keep_alive and not garbage)
                    body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
                    exchange.on_answer(status, headers, body)
                    return
                self._told = True
                exchange.on_head(self._status, self._headers)
        # A line of the next chunk, or the beginning of one, may have come with the end of this.
        self._between_chunks = self._chunk_over and data.endswith(b"\r\n")
        if self._pieces:
            self._mute_bytes = 0
            pieces, self._pieces = self._pieces, []
            piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            if self._complete:
                exchange.on_last(piece)
            else:
                exchange.on_body(piece, len(piece))
        if self._complete:
            self._finish(self._keep_alive and not garbage)
            exchange.on_end()
        elif garbage:
            exchange.broken("sent something that is not HTTP")
        elif self._told:
            # Of a line between chunks, or of trailers, of which the parser keeps what is no whole line.
            self._mute_bytes += len(data)
            if self._mute_bytes > MAX_HEAD_BYTES + SLICE_BYTES:
                exchange.broken("sent too much between pieces of its answer")

    def eof_received(self) -> None:
        self._eof = True
        exchange = self._exchange
        if exchange is not None and not self._waits:
            self._end_behind(exchange)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        if self._waits:
            return
        exchange = self._exchange
        if exchange is not None:
            if self._used_before and not self._head_bytes:
                self._exchange = None
                exchange.fail(StaleConnection())
            else:
                self._end_behind(exchange)
        self._leave()

    # httptools calls these.

    def on_message_begin(self) -> None:
        if self._complete:
            self._surplus = True

    def on_header(self, name: bytes, value: bytes) -> None:
        # After the head these are trailers, which are not read. Endless ones meet the
        # idle deadline, as only pieces of the body count as signs of life.
        if self._in_head:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._complete:
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != 101:
            self._headers = []
        else:
            self._status = status
            self._in_head = False

    def on_body(self, piece: bytes) -> None:
        if not self._complete:
            self._pieces.append(piece)

    def on_chunk_header(self) -> None:
        self._chunk_over = False

    def on_chunk_complete(self) -> None:
        self._chunk_over = True

    def on_message_complete(self) -> None:
        if not self._in_head:
            self._complete = True
            self._keep_alive = self._parser.should_keep_alive()

    # How.

    def _keep(self, data: bytes) -> None:
        """For its turns; nothing more is read until they are over."""
        # What comes then is no read of one chunk.
        self._between_chunks = False
        if self._waits:
            # A transport may have had more in hand.
            self._rest, self._at = self._rest[self._at :] + data, 0
            return
        self._rest, self._at, self._waits = data, 0, True
        if not self._paused:
            self.transport.pause_reading()
            self._ask_turn()

    def _ask_turn(self) -> None:
        if not self._asked_turn:
            self._asked_turn = True
            self._home.turns.ask(self, self._loop)

    def _still_waits(self) -> bool:
        return self._waits

    def _drop_rest(self) -> None:
        waited, self._waits = self._waits, False
        self._rest, self._at = b"", 0
        if waited and self._lost:
            self._leave()

    def _leave(self) -> None:
        self._home.lost(self)
        self.closed.set_result(None)

    def _end_behind(self, exchange: Exchange) -> None:
        """Nothing more comes, and all that came is parsed: the answer ends with it, or is cut once all is over."""
        if self._eof and self._told and self._ends_with_connection():
            self._finish(False)
            exchange.on_end()
        elif self._lost:
            self._exchange = None
            exchange.broke_off()

    def _reset(self) -> None:
        """Before the next answer."""
        self._headers = []
        self._head_bytes = self._mute_bytes = 0
        self._pieces = []
        self._in_head = True
        self._told = False
        self._complete = False
        self._between_chunks = False
        self._chunk_over = False

    def _too_long(self) -> bool:
        """The read with the end of the head may hold much of the body, so count exactly."""
        return self._in_head or size(self._headers) > MAX_HEAD_BYTES

    def _ends_with_connection(self) -> bool:
        """The head gave no other end (RFC 9112, section 6.3)."""
        fields = dict(self._headers)
        if b"transfer-encoding" in fields:
            return not fields[b"transfer-encoding"].lower().rstrip().endswith(b"chunked")
        return b"content-length" not in fields

    def _finish(self, reusable: bool) -> None:
        """The answer is complete: the connection is free, or of no more use."""
        self._exchange = None
        # An engine that answered before it read everything may never read the rest.
        unsent = self.transport.get_write_buffer_size()
        halted = self._paused
        if self._waits:
            halted = True
            over = self._eof or self._lost
            reusable = reusable and self._at >= len(self._rest) and not over
            self._drop_rest()
        if reusable and not self._surplus and not unsent and not self.transport.is_closing():
            if halted:
                self._paused = False
                self.transport.resume_reading()
            self._used_before = True
            self._reset()
            self.idle_since = self._loop.time()
            home = self._home
            home.idle.append(self)
            if not home.watches_idle:
                home.watch_idle()
        else:
            self.transport.abort()


def size(headers: Headers) -> int:
    return sum(len(name) + len(value) + 4 for name, value in headers)
