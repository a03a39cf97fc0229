"""Wire: one connection that speaks ZMTP, and the bounds of what comes by it.

A message has MOST_PARTS and `most_bytes`, and ends within MESSAGE_SECONDS of its beginning; until one begins it may take for ever.
PINGs are answered. Before each frame `turn` is awaited: what is here already is read without a turn of the loop, and a flood
would stand still all else.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final, Protocol

MOST_PARTS: Final = 8
MOST_COMMAND_BYTES: Final = 512
HANDSHAKE_SECONDS: Final = 5.0
MESSAGE_SECONDS: Final = 5.0
SMALL_BYTES: Final = 64 << 10
MOST_LARGE_BYTES: Final = 64 << 20

NULL: Final = b"NULL"
READY: Final = b"\5READY"
_GREETING_BYTES: Final = 64
_MECHANISM: Final = slice(12, 32)
_MORE, _LONG, _COMMAND = 1, 2, 4
_PING, _PONG = b"\4PING", b"\4PONG"
_TTL_BYTES: Final = 2
_MOST_CONTEXT_BYTES: Final = 16
_SHORT: Final = 255

Turn = Callable[[], Awaitable[None]]


class RefusalReason(StrEnum):
    """Why a connection is ended, or not begun."""

    STRANGER = "stranger"
    TOO_MANY = "too_many"
    TOO_LARGE = "too_large"
    MALFORMED = "malformed"


class EndedConnection(Exception):
    """A connection that this side ended for what the other side said."""

    def __init__(self, why: RefusalReason) -> None:
        super().__init__(why)
        self.why = why


class MessageRoom:
    """What parts beyond SMALL_BYTES may take, of all connections that share it, until their messages are whole."""

    def __init__(self) -> None:
        self._left = MOST_LARGE_BYTES

    def take(self, size: int) -> int:
        """How much was taken. Raises EndedConnection."""
        if size <= SMALL_BYTES:
            return 0
        if size > self._left:
            raise EndedConnection(RefusalReason.TOO_LARGE)
        self._left -= size
        return size

    def give_back(self, size: int) -> None:
        self._left += size


class FrameSeal(Protocol):
    """Encryption of frames."""

    @property
    def overhead_bytes(self) -> int: ...

    def seal(self, *, more: bool, command: bool, body: bytes) -> bytes: ...

    def opened(self, body: bytes) -> tuple[bool, bool, bytes]:
        """Whether more follows, whether it is a command, and what it says. Raises ValueError."""


class Wire:
    """
    Attributes:
        most_bytes: Of a message.
        seal: None while nothing is encrypted.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        most_bytes: int,
        turn: Turn,
        room: MessageRoom | None = None,
    ) -> None:
        """`room`: what it shares with others."""
        self.most_bytes = most_bytes
        self.seal: FrameSeal | None = None
        self._reader = reader
        self._writer = writer
        self._turn = turn
        self._room = room or MessageRoom()
        self._taken = 0

    async def greet(self, mechanism: bytes) -> None:
        """Raises EndedConnection, OSError, EOFError."""
        padded = mechanism.ljust(20, b"\0")
        self._writer.write(b"\xff" + bytes(8) + b"\x7f" + b"\3\0" + padded + bytes(32))
        said = await self._reader.readexactly(_GREETING_BYTES)
        if said[:1] + said[9:10] != b"\xff\x7f" or said[10] < 3 or said[_MECHANISM] != padded:
            raise EndedConnection(RefusalReason.MALFORMED)

    async def ready(self, kind: str, identity: bytes = b"") -> Mapping[bytes, bytes]:
        """What the other side says of itself, and we are this. Raises EndedConnection, OSError, EOFError."""
        named = prop(b"Identity", identity) if identity else b""
        self.command(READY + prop(b"Socket-Type", kind.encode()) + named)
        return properties(await self.commanded(READY))

    def command(self, body: bytes) -> None:
        self._writer.write(_frame(_COMMAND, body))

    async def commanded(self, name: bytes) -> bytes:
        """What follows the name of a command that has to come now. Raises EndedConnection, OSError, EOFError."""
        first = await self._reader.readexactly(1)
        more, command, body = await self._frame(first, 0)
        if more or not command or not body.startswith(name):
            raise EndedConnection(RefusalReason.MALFORMED)
        return body[len(name) :]

    async def receive(self) -> list[bytes]:
        """The next message. Raises EndedConnection, OSError, EOFError."""
        while True:
            await self._turn()
            first = await self._reader.readexactly(1)
            try:
                async with asyncio.timeout(MESSAGE_SECONDS):
                    message = await self._message(first)
            except TimeoutError:
                raise EndedConnection(RefusalReason.MALFORMED) from None
            finally:
                self._room.give_back(self._taken)
                self._taken = 0
            if message is not None:
                return message

    def send(self, parts: Sequence[bytes]) -> None:
        """Send without waiting: `drained` does."""
        self._writer.writelines(self._framed(parts))

    async def drained(self) -> None:
        """Wait until what was sent is on its way. Raise EndedConnection where it is not read, OSError."""
        try:
            async with asyncio.timeout(MESSAGE_SECONDS):
                await self._writer.drain()
        except TimeoutError:
            raise EndedConnection(RefusalReason.MALFORMED) from None

    def close(self) -> None:
        self._writer.transport.abort()

    async def _message(self, first: bytes) -> list[bytes] | None:
        """The parts of one; None for a command. Raises EndedConnection, OSError, EOFError."""
        parts: list[bytes] = []
        size = 0
        while True:
            more, command, body = await self._frame(first, size)
            if command:
                if parts or more:
                    raise EndedConnection(RefusalReason.MALFORMED)
                if body.startswith(_PING):
                    await self._pong(body)
                return None
            parts.append(body)
            if not more:
                return parts
            if len(parts) == MOST_PARTS:
                raise EndedConnection(RefusalReason.TOO_LARGE)
            size += len(body)
            await self._turn()
            first = await self._reader.readexactly(1)

    async def _pong(self, ping: bytes) -> None:
        body = _PONG + ping[len(_PING) + _TTL_BYTES :][:_MOST_CONTEXT_BYTES]
        if self.seal is None:
            self.command(body)
        else:
            self._writer.write(_frame(0, self.seal.seal(more=False, command=True, body=body)))
        await self._writer.drain()

    async def _frame(self, first: bytes, before: int) -> tuple[bool, bool, bytes]:
        """Whether more follows, whether it is a command, and what it says.

        `before`: bytes of its message that are here. Raises EndedConnection, OSError, EOFError.
        """
        flags = first[0]
        if flags > _MORE | _LONG | _COMMAND or (flags & _COMMAND and (flags & _MORE or before)):
            raise EndedConnection(RefusalReason.MALFORMED)
        size = int.from_bytes(await self._reader.readexactly(8 if flags & _LONG else 1))
        sealed = 0 if self.seal is None else self.seal.overhead_bytes
        most = MOST_COMMAND_BYTES if flags & _COMMAND else self.most_bytes - before
        if size > most + sealed:
            raise EndedConnection(RefusalReason.TOO_LARGE)
        self._taken += self._room.take(size)
        body = await self._reader.readexactly(size)
        if self.seal is None:
            return bool(flags & _MORE), bool(flags & _COMMAND), body
        try:
            return self.seal.opened(body)
        except ValueError:
            raise EndedConnection(RefusalReason.MALFORMED) from None

    def _framed(self, parts: Sequence[bytes]) -> Iterator[bytes]:
        for left, part in zip(range(len(parts) - 1, -1, -1), parts, strict=True):
            if self.seal is None:
                yield _frame(_MORE if left else 0, part)
            else:
                yield _frame(0, self.seal.seal(more=left > 0, command=False, body=part))


def prop(name: bytes, value: bytes) -> bytes:
    """One of the properties that a side says of itself."""
    return bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value


def properties(said: bytes) -> Mapping[bytes, bytes]:
    """Raises EndedConnection."""
    found = {}
    while said:
        name, said = said[1 : 1 + said[0]], said[1 + said[0] :]
        size = int.from_bytes(said[:4])
        if len(said) < 4 + size:
            raise EndedConnection(RefusalReason.MALFORMED)
        found[name.lower()], said = said[4 : 4 + size], said[4 + size :]
    return found


def _frame(flags: int, body: bytes) -> bytes:
    if len(body) > _SHORT:
        return bytes([flags | _LONG]) + len(body).to_bytes(8, "big") + body
    return bytes([flags, len(body)]) + body
