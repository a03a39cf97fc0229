"""Messages between an engine and its mover process: msgpack, one per packet (SEQPACKET).

engine says    Introduction, first of all and once
               Open (with the peer's connection), More, Write, Cancel, Close
mover says     Ended, once per Write

Ranges travel as packed integers, so that a long list costs the engine next to nothing.
"""

import socket
import struct
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from pdgate.transfer.base import Range
from pdgate.transfer.runtime.fleet import Identity, Keyring
from pdgate.transfer.runtime.tls import Tls

MAX_BYTES: Final = 128 << 10
"""Of a packet; below what a socket takes at once by default."""
_RANGE = struct.Struct("<qqq")
MAX_RANGES_BYTES: Final = (MAX_BYTES - 128) // _RANGE.size * _RANGE.size
"""Of an order."""


class MoverIntroduction(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What the mover proves itself with: the engine's name and the fleet's secrets, and the files
    that they, and its certificates, may change in.
    """

    name: bytes
    secrets: list[str]
    path: str
    tls: tuple[str, str, str] | None

    @classmethod
    def of(cls, identity: Identity) -> "MoverIntroduction":
        keyring, tls = identity.keyring, identity.tls
        files = None if tls is None else (tls.cert, tls.key, tls.ca)
        return cls(identity.name, keyring.texts(), keyring.path, files)

    def identity(self) -> Identity:
        """Raises ValueError."""
        tls = None if self.tls is None else Tls(*self.tls)
        return Identity(Keyring(self.secrets, self.path), self.name, tls)


class Open(msgspec.Struct, frozen=True, tag=True, array_like=True):
    destination: int
    descriptor: dict[str, Any]


class More(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The first ranges of a write that has more than a packet takes; the write follows."""

    number: int
    ranges: bytes


class MoverWrite(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """
    Attributes:
        ranges: As `pack` makes them; the last ones of this write, often all.
        until: On CLOCK_MONOTONIC, which all processes of a host share.
    """

    number: int
    destination: int
    ranges: bytes
    until: float
    immediate: int


class MoverCancel(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Gives up the destination's writes, also those that are still to come."""

    destination: int


class Close(msgspec.Struct, frozen=True, tag=True, array_like=True):
    destination: int


class MoveEnded(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """`error` is empty if all is well."""

    number: int
    error: str


Order = Open | More | MoverWrite | MoverCancel | Close

encode = msgspec.msgpack.encode
_orders = msgspec.msgpack.Decoder(Order)
_introductions = msgspec.msgpack.Decoder(MoverIntroduction)
_ends = msgspec.msgpack.Decoder(MoveEnded)


def pack(ranges: Iterable[Range]) -> bytes:
    """Range after range: local, remote, length."""
    return b"".join(_RANGE.pack(one.local, one.remote, one.length) for one in ranges)


def parts(packed: bytes) -> list[bytes]:
    """What fits into an order each; one, if it is not too long."""
    starts = range(0, max(1, len(packed)), MAX_RANGES_BYTES)
    return [packed[start : start + MAX_RANGES_BYTES] for start in starts]


def unpack(data: bytes | bytearray) -> list[Range]:
    return [Range(*numbers) for numbers in _RANGE.iter_unpack(data)]


def new_pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def receive_introduction(sock: socket.socket) -> MoverIntroduction:
    """Raises OSError, EOFError."""
    data = sock.recv(MAX_BYTES)
    if not data:
        raise EOFError("the engine ended before it said anything")
    return _introductions.decode(data)


def receive_order(sock: socket.socket) -> tuple[Order, int | None] | None:
    """With the file descriptor that came along; None when the engine is gone."""
    try:
        data, fds, _, _ = socket.recv_fds(sock, MAX_BYTES, 1)
    except ConnectionResetError:
        # It was killed before it had read all that we said.
        return None
    if not data:
        return None
    # The Union keeps mypy from seeing what the decoder returns.
    order: Order = _orders.decode(data)
    return order, fds[0] if fds else None


def receive_end(sock: socket.socket) -> MoveEnded | None:
    """None when the mover is gone. Raises OSError, BlockingIOError among them."""
    data = sock.recv(MAX_BYTES)
    return _ends.decode(data) if data else None
