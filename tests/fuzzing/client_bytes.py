"""Whatever a client sends, what it gets are HTTP answers, and no more than it asked for.

Connections as they are, over a transport that takes all; behind them a service that answers every
call at once.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import h11
import uvicorn
from uvicorn.server import ServerState

from pdgate.forwarders.base import Answer, Sink
from pdgate.forwarders.execution import Execution
from pdgate.forwarders.pausing import Pausing
from pdgate.forwarders.record import Deliver, Record
from pdgate.forwarders.retry import FRESH, RetryState
from pdgate.gateway.front.asgi import Front
from pdgate.gateway.front.hot_protocol import HotProtocol
from pdgate.gateway.intake import Intake
from pdgate.gateway.metrics.call_stats import CallStats
from pdgate.gateway.service import Service
from pdgate.protocols.call import Call, Headers
from tests.fuzzing.cutting import cut

_HOT = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
SEEDS = (
    _HOT + b'content-length: 15\r\n\r\n{"prompt": "a"}',
    _HOT + b'transfer-encoding: chunked\r\n\r\nf\r\n{"prompt": "a"}\r\n0\r\n\r\n',
    _HOT + b"content-length: 2\r\n\r\n{}" + _HOT + b"content-length: 2\r\n\r\n{}",
    _HOT + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{}",
    _HOT + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    _HOT + b"content-length: -2\r\n\r\n{}",
    _HOT + b"expect: 100-continue\r\ncontent-length: 2\r\n\r\n{}",
    _HOT + b"content-length: 99999999\r\n\r\n{}",
    _HOT + b"x-request-id: a\x00b\r\nx-priority: 9\r\ncontent-length: 2\r\n\r\n{}",
    _HOT + b"connection: upgrade\r\nupgrade: websocket\r\ncontent-length: 2\r\n\r\n{}",
    b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n" + _HOT + b"content-length: 2\r\n\r\n{}",
    b"POST /v1/completions HTTP/1.0\r\ncontent-length: 2\r\n\r\n{}",
    _HOT
    + b"\r\nPOST /v1/other HTTP/1.1\r\n\r\nPOST /v1/json\r\ntransfer-encoding: clunked\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)
TURNS = 20
"""Of the event loop, after which a request that can be answered has been."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_loop = asyncio.new_event_loop()


def check(data: bytes) -> None:
    with _no_surprises() as surprises:
        written, _ = _loop.run_until_complete(_talk(cut(data)))
    assert not surprises, surprises
    _read_as_a_client(written)


async def _talk(pieces: list[bytes]) -> tuple[bytes, bool]:
    """What was written, and whether the connection was closed."""
    protocol = HotProtocol(_config, ServerState(), {}, _loop)
    wire = _Wire(protocol)
    protocol.connection_made(cast(asyncio.Transport, wire))
    for piece in pieces:
        if not wire.closing:
            protocol.data_received(piece)
            await _turns(1)
    await _turns(TURNS)
    closed = wire.closing
    if not closed:
        protocol.connection_lost(None)
    await _turns(TURNS)
    assert not protocol.tasks, "a call was left behind"
    return wire.written, closed


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def _read_as_a_client(written: bytes) -> None:
    """Whole answers one after another; the last one may end with the connection."""
    while written.removeprefix(_CONTINUE):
        client = h11.Connection(h11.CLIENT)
        client.send(h11.Request(method="POST", target="/", headers=[("host", "x")]))
        client.send(h11.EndOfMessage())
        client.receive_data(written)
        while (event := client.next_event()) is not h11.NEED_DATA:
            if isinstance(event, h11.Response):
                assert event.status_code != 500, written
            if isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                break
        else:
            raise AssertionError(f"half an answer: {written!r}")
        written = client.trailing_data[0]


@contextmanager
def _no_surprises() -> Iterator[list[str]]:
    """What went wrong in a place that nobody hears of, but the log."""
    found: list[str] = []
    handler = _Noting(found)
    _loop.set_exception_handler(lambda _, context: found.append(repr(context)))
    logging.getLogger().addHandler(handler)
    try:
        yield found
    finally:
        logging.getLogger().removeHandler(handler)


class _Noting(logging.Handler):
    def __init__(self, found: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        self._found.append(record.getMessage())


class _Wire(asyncio.Transport):
    def __init__(self, protocol: HotProtocol) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written = b""
        self.closing = False
        self._protocol = protocol

    def write(self, data: Any) -> None:
        # As real ones do.
        if not self.closing:
            self.written += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            _loop.call_soon(self._protocol.connection_lost, None)

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        raise AssertionError("no upgrade was asked for")


class _Fixed:
    """An engine's answer that is here as a whole."""

    def __init__(self) -> None:
        self.status = 200
        self.headers: Headers = ((b"content-type", b"application/json"), (b"content-length", b"2"))

    async def ready(self, beyond: int = 0) -> bytes:
        return b"{}"

    def start(self, sink: Sink) -> None:
        sink.ended(None, b"{}")

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class _Answers(Execution):
    def __init__(self) -> None:
        """It has no engines."""
        self.encoding = None

    async def serve(
        self,
        call: Call,
        record: Record,
        deliver: Deliver,
        state: RetryState = FRESH,
        pausing: Pausing | None = None,
    ) -> None:
        answer: Answer = _Fixed()
        await deliver(answer, record)


async def _nothing_else(scope: Any, receive: Any, send: Any) -> None:
    """What the framework answers to everything that is no hot call."""
    if scope["type"] == "http":
        while (await receive()).get("more_body"):
            pass
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 404, "headers": headers})
        await send({"type": "http.response.body"})


_front = Front(Service(Intake(1 << 16), _Answers(), CallStats(())), _nothing_else, None)
_config = uvicorn.Config(
    _front, http=HotProtocol, ws="none", lifespan="off", log_config=None, proxy_headers=False
)
_config.load()
