"""What the tcp backend says on a connection; integers are little-endian.

    request   magic "PDKV", op u8, counted u8, pad u16, epoch [16], immediate u32, count u32
              count x (offset u64, length u64)
    answer    magic "PDKV", status u8, pad [3]

    read      request -> answer, then the bytes of all ranges in order
    write     request -> answer, then our bytes -> answer (they have landed)

A connection carries one request after the other. After an answer other than OK no
bytes follow; after BAD_REQUEST the owner hangs up.
"""

import socket
import struct
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import Final

MAGIC: Final = b"PDKV"
MAX_RANGES: Final = 1 << 20
MAX_VIEWS_PER_CALL: Final = 512
"""Below IOV_MAX (1024 on Linux)."""

_REQUEST = struct.Struct("<4sBBxx16sII")
_RANGE = struct.Struct("<QQ")
_ANSWER = struct.Struct("<4sBxxx")


class Op(IntEnum):
    READ = 1
    WRITE = 2


class Status(IntEnum):
    OK = 0
    STALE = 1
    OUT_OF_BOUNDS = 2
    BAD_REQUEST = 3


class BadRequest(Exception):
    """The bytes are not ours."""


@dataclass(frozen=True, slots=True)
class Request:
    """`ranges` are (offset, length) in the owner's memory."""

    op: Op
    epoch: bytes
    ranges: Sequence[tuple[int, int]]
    immediate: int | None = None


def encode(request: Request) -> bytes:
    counted = request.immediate is not None
    head = _REQUEST.pack(
        MAGIC, request.op, counted, request.epoch, request.immediate or 0, len(request.ranges)
    )
    return head + b"".join(_RANGE.pack(*one) for one in request.ranges)


def receive_request(sock: socket.socket, stall_seconds: float) -> Request | None:
    """None when the peer hung up between requests. Raises BadRequest, OSError.

    Between requests it waits for ever; inside one, `stall_seconds` per piece.
    """
    sock.settimeout(None)
    head = bytearray(_REQUEST.size)
    first = sock.recv_into(head)
    if first == 0:
        return None
    sock.settimeout(stall_seconds)
    receive_views(sock, [memoryview(head)[first:]])
    magic, op, counted, epoch, immediate, count = _REQUEST.unpack(head)
    if magic != MAGIC or op not in tuple(Op) or counted > 1 or count > MAX_RANGES:
        raise BadRequest
    ranges = _RANGE.iter_unpack(receive(sock, count * _RANGE.size))
    return Request(Op(op), epoch, [(o, n) for o, n in ranges], immediate if counted else None)


def send_answer(sock: socket.socket, status: Status) -> None:
    sock.sendall(_ANSWER.pack(MAGIC, status))


def receive_answer(sock: socket.socket) -> Status:
    """Raises BadRequest, OSError."""
    magic, status = _ANSWER.unpack(receive(sock, _ANSWER.size))
    if magic != MAGIC or status not in tuple(Status):
        raise BadRequest
    return Status(status)


def receive(sock: socket.socket, length: int) -> bytes:
    data = bytearray(length)
    receive_views(sock, [memoryview(data)])
    return bytes(data)


def receive_views(sock: socket.socket, views: Iterable[memoryview]) -> None:
    """Fills the views in order, straight from the socket. Raises OSError."""
    for view in views:
        left = view
        while left:
            got = sock.recv_into(left, 0, socket.MSG_WAITALL)
            if got == 0:
                raise ConnectionResetError("the peer hung up in the middle")
            left = left[got:]


def send_views(sock: socket.socket, views: Iterable[memoryview]) -> None:
    """Sends the views in order, without joining them. Raises OSError."""
    left = deque(view for view in views if view)
    while left:
        sent = sock.sendmsg(list(islice(left, MAX_VIEWS_PER_CALL)))
        while sent:
            if sent < len(left[0]):
                left[0] = left[0][sent:]
                break
            sent -= len(left.popleft())
