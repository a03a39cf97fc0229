"""What an engine and its mover process say: msgpack, one message per packet (SEQPACKET).

engine says    Open (with the peer's connection), Write, Close
mover says     Ended, once per Write
"""

import socket
from typing import Any, Final

import msgspec

MAX_BYTES: Final = 128 << 10
"""Of a packet; below what a socket takes at once by default."""
MAX_RANGES: Final = (MAX_BYTES - 64) // 28
"""Of an order: three numbers of at most nine bytes, and the head of their list."""


class Open(msgspec.Struct, frozen=True, tag=True, array_like=True):
    destination: int
    descriptor: dict[str, Any]


class Write(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """
    Attributes:
        ranges: Local offset, remote offset, bytes.
        until: On CLOCK_MONOTONIC, which all processes of a host share.
    """

    number: int
    destination: int
    ranges: list[tuple[int, int, int]]
    until: float
    immediate: int


class Close(msgspec.Struct, frozen=True, tag=True, array_like=True):
    destination: int


class Ended(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """`error` is empty if all is well."""

    number: int
    error: str


Order = Open | Write | Close

encode = msgspec.msgpack.encode
_orders = msgspec.msgpack.Decoder(Order)
_ends = msgspec.msgpack.Decoder(Ended)


def new_pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


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


def receive_end(sock: socket.socket) -> Ended | None:
    """None when the mover is gone. Raises OSError, BlockingIOError among them."""
    data = sock.recv(MAX_BYTES)
    return _ends.decode(data) if data else None
