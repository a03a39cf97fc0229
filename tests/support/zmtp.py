"""What a socket of ZeroMQ says, written by hand: as no ZeroMQ would say it."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

GREETING = b"\xff" + bytes(8) + b"\x7f\3\0" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\4\x1a\5READY\x0bSocket-Type\0\0\0\4PUSH"
PUB_READY = b"\4\x19\5READY\x0bSocket-Type\0\0\0\3PUB"
ROUTER_READY = b"\4\x1c\5READY\x0bSocket-Type\0\0\0\6ROUTER"
MORE, LONG, COMMAND = 1, 2, 4

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def frame(flags: int, body: bytes) -> bytes:
    return bytes([flags | LONG]) + struct.pack(">Q", len(body)) + body


def message(*parts: bytes) -> bytes:
    return b"".join(frame(MORE, part) for part in parts[:-1]) + frame(0, parts[-1])


@asynccontextmanager
async def publisher(talk: Talk) -> AsyncIterator[str]:
    """Its endpoint; `talk` says what is published to each that has subscribed."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(GREETING + PUB_READY)
            # Theirs: greeting, READY, and the subscription to the topic "kv".
            await reader.readexactly(len(GREETING) + 27 + 5)
            await talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
