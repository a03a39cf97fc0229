"""ZMTP: what ZeroMQ's PUSH and DEALER sockets send, heard within bounds, and without ZeroMQ.

    they   greeting, READY, message, message, ...    -->  heard(last part), a message at a time
    we     greeting, READY, a PONG for each PING

ZeroMQ bounds a part of a message (ZMQ_MAXMSGSIZE) and the whole messages that wait (ZMQ_RCVHWM), but not the parts of a message that
never ends: one connection fills all memory, 200 MB a second. So ports that are open to other hosts are read here:
addresses are looked at before a byte is read, a message has MOST_PARTS, and ends within MESSAGE_SECONDS of its beginning;
connections are MOST_AT_ONCE; and all of them together have MOST_FRAMES in each FRAMES_SECONDS, in turns with all else on the loop.

Source: RFC 23 (ZMTP 3.0; greeting, NULL mechanism, framing), RFC 37 (ZMTP 3.1; PING); libzmq 4.3.5, src/pipe.cpp (pipe_t::write,
check_hwm), where a part with more behind it counts for nothing.
"""

import asyncio
import socket
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from pdgate.cluster.networks import Allowed

MOST_PARTS: Final = 8
MOST_AT_ONCE: Final = 1024
MOST_COMMAND_BYTES: Final = 512
HANDSHAKE_SECONDS: Final = 5.0
MESSAGE_SECONDS: Final = 5.0
MOST_FRAMES: Final = 100
FRAMES_SECONDS: Final = 0.01
"""Together 10,000 a second, some 15 % of a core."""

_MECHANISM: Final = b"NULL".ljust(20, b"\0")
_GREETING: Final = b"\xff" + bytes(8) + b"\x7f" + b"\3\0" + _MECHANISM + bytes(32)
_MORE, _LONG, _COMMAND = 1, 2, 4
_PING, _PONG = b"\4PING", b"\4PONG"
_TTL_BYTES: Final = 2
_MOST_CONTEXT_BYTES: Final = 16


class RefusalReason(StrEnum):
    """Why a connection is ended, or not begun."""

    STRANGER = "stranger"
    TOO_MANY = "too_many"
    TOO_LARGE = "too_large"
    MALFORMED = "malformed"


class _End(Exception):
    def __init__(self, why: RefusalReason) -> None:
        super().__init__(why)
        self.why = why


class ZmtpListener:
    """
    Attributes:
        port: That it has.
    """

    def __init__(
        self,
        host: str,
        port: int,
        kind: str,
        allowed: Allowed,
        most_bytes: int,
        heard: Callable[[bytes], None],
        refused: Callable[[RefusalReason], None],
    ) -> None:
        """Binds at once. `kind`: the socket type that peers expect; `most_bytes`: of a message. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._sock = socket.create_server((host, port), family=family)
        self.port: int = self._sock.getsockname()[1]
        self._ready = _command(b"\5READY" + _property(b"Socket-Type", kind.encode()))
        self._allowed = allowed
        self._most_bytes = most_bytes
        self._heard = heard
        self._refused = refused
        self._open: set[asyncio.StreamWriter] = set()
        self._turns = asyncio.Lock()
        self._frames = 0
        self._since = 0.0

    async def run(self) -> None:
        """Until it is cancelled; may be run again then."""
        # The server closes its socket when it ends.
        server = await asyncio.start_server(self._serve, sock=self._sock.dup())
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            server.close()
            for writer in self._open:
                writer.transport.abort()

    def close(self) -> None:
        self._sock.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            await self._talk(reader, writer)
        except _End as end:
            self._refused(end.why)
        except (OSError, asyncio.IncompleteReadError):
            # It has left, or its network has.
            pass
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Raises _End, OSError, IncompleteReadError."""
        # One that has left by now has no name.
        host = (writer.get_extra_info("peername") or ("",))[0]
        if host not in self._allowed:
            raise _End(RefusalReason.STRANGER)
        if len(self._open) > MOST_AT_ONCE:
            raise _End(RefusalReason.TOO_MANY)
        # A host that is gone says nothing any more, and would have its place for ever.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                writer.write(_GREETING)
                greeting = await reader.readexactly(len(_GREETING))
                if greeting[:1] + greeting[9:10] != b"\xff\x7f" or greeting[10] < 3:
                    raise _End(RefusalReason.MALFORMED)
                if greeting[12:32] != _MECHANISM:
                    raise _End(RefusalReason.MALFORMED)
                writer.write(self._ready)
                flags, body = await self._frame(reader, await reader.readexactly(1), 0)
                if not flags & _COMMAND or not body.startswith(b"\5READY"):
                    raise _End(RefusalReason.MALFORMED)
        except (TimeoutError, asyncio.IncompleteReadError):
            raise _End(RefusalReason.MALFORMED) from None
        while True:
            first = await reader.readexactly(1)
            try:
                async with asyncio.timeout(MESSAGE_SECONDS):
                    message = await self._message(reader, writer, first)
            except TimeoutError:
                raise _End(RefusalReason.MALFORMED) from None
            if message is not None:
                self._heard(message)

    async def _message(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: bytes
    ) -> bytes | None:
        """The last part of one; None for a command. Raises _End, OSError, IncompleteReadError."""
        size = 0
        for _ in range(MOST_PARTS):
            flags, body = await self._frame(reader, first, size)
            if flags & _COMMAND:
                if body.startswith(_PING):
                    context = body[len(_PING) + _TTL_BYTES :][:_MOST_CONTEXT_BYTES]
                    writer.write(_command(_PONG + context))
                    await writer.drain()
                return None
            if not flags & _MORE:
                return body
            size += len(body)
            first = await reader.readexactly(1)
        raise _End(RefusalReason.TOO_LARGE)

    async def _frame(
        self, reader: asyncio.StreamReader, first: bytes, before: int
    ) -> tuple[int, bytes]:
        """Flags and body. `before`: bytes of its message that are here. Raises _End, OSError, IncompleteReadError."""
        await self._turn()
        flags = first[0]
        if flags > _MORE | _LONG | _COMMAND or (flags & _COMMAND and (flags & _MORE or before)):
            raise _End(RefusalReason.MALFORMED)
        size = int.from_bytes(await reader.readexactly(8 if flags & _LONG else 1))
        if size > (MOST_COMMAND_BYTES if flags & _COMMAND else self._most_bytes - before):
            raise _End(RefusalReason.TOO_LARGE)
        return flags, await reader.readexactly(size)

    async def _turn(self) -> None:
        """What is here already is read without a turn of the loop: a flood would stand still all else."""
        loop = asyncio.get_running_loop()
        async with self._turns:
            now = loop.time()
            if self._frames >= MOST_FRAMES and now < self._since + FRAMES_SECONDS:
                await asyncio.sleep(self._since + FRAMES_SECONDS - now)
                now = loop.time()
            if now >= self._since + FRAMES_SECONDS:
                self._since, self._frames = now, 0
            self._frames += 1
            await asyncio.sleep(0)


def _property(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value


def _command(body: bytes) -> bytes:
    return bytes([_COMMAND, len(body)]) + body
