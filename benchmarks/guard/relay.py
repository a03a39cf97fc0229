"""The yardstick: the least that carries a call over two engines, in the same language.

    client --> prefill, one token --> its kv_transfer_params into the call --> decode --> client

Callbacks only, one connection to each engine, one call at a time, no time limits, no retries, no
choice and no books; anything unexpected is an AssertionError. It uses the same parsers as the
gateway, so that what another Python or another parser costs more, it costs more to both. What
it costs is the unit of `baseline.json`: change it only with a new baseline.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import httptools
import msgspec

from benchmarks.guard.memory_wire import HOST, Client
from benchmarks.guard.scenarios import PATH
from benchmarks.guard.still_loop import StillLoop

PORT, PREFILL_PORT, DECODE_PORT = 8100, 9001, 9003
_ASK = msgspec.Raw(b'{"do_remote_decode":true,"do_remote_prefill":false}')
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


@asynccontextmanager
async def relay(loop: StillLoop) -> AsyncIterator[Client]:
    prefill, decode = Engine(), Engine()
    await loop.create_connection(lambda: prefill, HOST, PREFILL_PORT)
    await loop.create_connection(lambda: decode, HOST, DECODE_PORT)
    yield Client(loop, Relay(prefill, decode), PORT)


class Engine(asyncio.Protocol):
    """A connection to one.

    Attributes:
        on_head: Told status and headers.
        on_piece: Told a piece of the body, and whether it was the last.
    """

    on_head: Callable[[int, list[tuple[bytes, bytes]]], None]
    on_piece: Callable[[bytes, bool], None]

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._piece = b""
        self._over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self, body: dict[str, Any]) -> None:
        written = _encode(body)
        head = b"POST %b HTTP/1.1\r\nhost: engine\r\ncontent-length: %d\r\n\r\n"
        self._transport.write(head % (PATH.encode(), len(written)) + written)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)
        piece, self._piece = self._piece, b""
        over, self._over = self._over, False
        if piece or over:
            self.on_piece(piece, over)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        headers, self._headers = self._headers, []
        self.on_head(self._parser.get_status_code(), headers)

    def on_body(self, piece: bytes) -> None:
        self._piece += piece

    def on_message_complete(self) -> None:
        self._over = True


class Relay(asyncio.Protocol):
    """A client's connection."""

    def __init__(self, prefill: Engine, decode: Engine) -> None:
        self._prefill, self._decode = prefill, decode
        prefill.on_head, prefill.on_piece = self._prefill_begins, self._prefilled
        decode.on_head, decode.on_piece = self._decode_begins, self._decoded
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""
        self._reply = b""
        self._head = b""
        self._chunked = False
        self._call: dict[str, Any] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, piece: bytes) -> None:
        self._body += piece

    def on_message_complete(self) -> None:
        body, self._body = self._body, b""
        self._call = _decode(body)
        asked = {**self._call, "max_tokens": 1, "kv_transfer_params": _ASK}
        asked.pop("stream", None)
        self._prefill.send(asked)

    def _prefill_begins(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        assert status == 200

    def _prefilled(self, piece: bytes, over: bool) -> None:
        self._reply += piece
        if over:
            reply, self._reply = _decode(self._reply), b""
            found = {"kv_transfer_params": reply["kv_transfer_params"]}
            self._decode.send({**self._call, **found})

    def _decode_begins(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        assert status == 200
        self._chunked = (b"transfer-encoding", b"chunked") in headers
        lines = [b"HTTP/1.1 200 OK", *(name + b": " + value for name, value in headers)]
        self._head = b"\r\n".join(lines) + b"\r\n\r\n"

    def _decoded(self, piece: bytes, over: bool) -> None:
        head, self._head = self._head, b""
        if self._chunked and piece:
            piece = b"%x\r\n%b\r\n" % (len(piece), piece)
        if self._chunked and over:
            piece += b"0\r\n\r\n"
        self._transport.write(head + piece)
