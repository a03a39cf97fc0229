"""Messages of the tcp backend on a connection that is proven; integers are little-endian.

    request   magic "PDKV", op u8, counted u8, pad u16, epoch [16], immediate u32, count u32
              count x (offset u64, length u64), MAC [16]
    answer    magic "PDKV", status u8, pad [3], MAC [16]

    read      request -> answer, then the bytes of all ranges in order
    write     request, then our bytes -> answer (they have landed)

A connection carries one request after the other. After an answer other than OK no bytes
follow; those of a write that is refused are read and dropped. After BAD_REQUEST the owner
hangs up. The epoch is a grant's (or a region's, which is of all of it).

Checked, the magic is "PDKC", and behind the bytes of a transfer comes their CRC-32 (u32, as zlib
has it). Bytes that fail it are CORRUPT: they may have landed, and are not counted. The MACs
(runtime/handshake.py) are of requests and answers only.
"""

import socket
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain
from operator import add
from typing import Final

from pdgate.transfer.runtime.channel import Channel
from pdgate.transfer.runtime.handshake import MAC_BYTES
from pdgate.transfer.runtime.sockets import (
    View,
    receive,
    receive_first,
    receive_views,
    send_views,
)

MAGIC: Final = b"PDKV"
CHECKED_MAGIC: Final = b"PDKC"
MAX_RANGES: Final = 1 << 20

_REQUEST = struct.Struct("<4sBBxx16sII")
_RANGE_BYTES: Final = 16
_ANSWER = struct.Struct("<4sBxxx")
_CRC = struct.Struct("<I")
_DROP_BYTES: Final = 256 << 10


class TcpOp(IntEnum):
    READ = 1
    WRITE = 2


class TcpStatus(IntEnum):
    OK = 0
    STALE = 1
    OUT_OF_BOUNDS = 2
    BAD_REQUEST = 3
    CORRUPT = 4
    FORBIDDEN = 5


# To ask an Enum whether it has a value takes longer than all else that is done to a head.
_OPS: Final = {int(one): one for one in TcpOp}
_STATUSES: Final = {int(one): one for one in TcpStatus}


class BadTcpRequest(Exception):
    """The bytes are not ours, or not as they were sent."""


class CorruptTransfer(Exception):
    """The bytes of a transfer are not as they were sent."""


@dataclass(frozen=True, slots=True)
class TcpRequest:
    """The ranges are of the owner's memory: `lengths[i]` bytes at `offsets[i]`."""

    op: TcpOp
    epoch: bytes
    offsets: Sequence[int]
    lengths: Sequence[int]
    immediate: int | None = None
    checked: bool = False

    @property
    def bytes(self) -> int:
        return sum(self.lengths)

    def inside(self, total: int) -> bool:
        """Of memory of so many bytes; nothing here is negative."""
        return max(map(add, self.offsets, self.lengths), default=0) <= total


def encode(request: TcpRequest) -> bytes:
    """Without its MAC."""
    counted = request.immediate is not None
    magic = CHECKED_MAGIC if request.checked else MAGIC
    count = len(request.offsets)
    head = _REQUEST.pack(magic, request.op, counted, request.epoch, request.immediate or 0, count)
    # All ranges in one go: there is one for each page.
    flat = chain.from_iterable(zip(request.offsets, request.lengths, strict=True))
    return head + struct.pack(f"<{2 * count}Q", *flat)


def receive_request(channel: Channel) -> TcpRequest | None:
    """None when the peer hung up between requests. Raises BadTcpRequest, OSError.

    Between requests it waits for ever; inside one, as long as the socket does for a piece.
    """
    sock = channel.sock
    head = receive_first(sock, _REQUEST.size)
    if not head:
        return None
    magic, number, counted, epoch, immediate, count = _REQUEST.unpack(head)
    op = _OPS.get(number)
    if magic not in (MAGIC, CHECKED_MAGIC) or op is None:
        raise BadTcpRequest
    if counted > 1 or count > MAX_RANGES:
        raise BadTcpRequest
    rest = receive(sock, count * _RANGE_BYTES + MAC_BYTES)
    ranges = rest[:-MAC_BYTES]
    channel.check(head + ranges, rest[-MAC_BYTES:])
    checked = magic == CHECKED_MAGIC
    flat = struct.unpack(f"<{2 * count}Q", ranges)
    return TcpRequest(op, epoch, flat[::2], flat[1::2], immediate if counted else None, checked)


def answer(status: TcpStatus, *, checked: bool) -> bytes:
    """Without its MAC."""
    return _ANSWER.pack(CHECKED_MAGIC if checked else MAGIC, status)


def receive_answer(channel: Channel, *, checked: bool) -> TcpStatus:
    """Raises BadTcpRequest, OSError."""
    sock = channel.sock
    said = receive(sock, _ANSWER.size + MAC_BYTES)
    data = said[: _ANSWER.size]
    channel.check(data, said[_ANSWER.size :])
    magic, number = _ANSWER.unpack(data)
    status = _STATUSES.get(number)
    if magic != (CHECKED_MAGIC if checked else MAGIC) or status is None:
        raise BadTcpRequest
    return status


def checksum(views: Iterable[View | bytearray], crc: int = 0) -> int:
    """Of all of them in order, behind those that gave `crc`."""
    for view in views:
        crc = zlib.crc32(view, crc)
    return crc


def send_bytes(
    sock: socket.socket, head: bytes, batches: Iterable[Sequence[memoryview]], *, checked: bool
) -> None:
    """A head, and a transfer's bytes behind it. Raises OSError."""
    crc = 0
    rest = [head]
    for views in batches:
        send_views(sock, [*rest, *views])
        rest = []
        if checked:
            crc = checksum(views, crc)
    if checked:
        rest.append(_CRC.pack(crc))
    if rest:
        send_views(sock, rest)


def receive_bytes(
    sock: socket.socket, batches: Iterable[Sequence[memoryview]], *, checked: bool
) -> None:
    """A transfer's. Raises CorruptTransfer, OSError."""
    crc = 0
    for views in batches:
        receive_views(sock, views)
        if checked:
            crc = checksum(views, crc)
    if checked and receive(sock, _CRC.size) != _CRC.pack(crc):
        raise CorruptTransfer


def drop(sock: socket.socket, request: TcpRequest) -> None:
    """The bytes of a write that was refused. Raises OSError."""
    left = request.bytes + (_CRC.size if request.checked else 0)
    scratch = memoryview(bytearray(min(left, _DROP_BYTES)))
    while left:
        got = min(left, len(scratch))
        receive_views(sock, [scratch[:got]])
        left -= got
