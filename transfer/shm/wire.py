"""Messages of the shm backend on its unix socket (SOCK_SEQPACKET: a message is a message).

    peer                              owner
      | HELLO epoch [16] -----------> |   same user? epoch known?
      | <-- OK length, address, memfd |   or STALE
      | LANDED immediate -----------> |   after each counted write
      |            ...                |
      | <-- end of file               |   the owner is gone, however it went, or closes the region

The address is 0 where the memfd is the memory; else the memory is the owner's alone, at
this address, and the memfd is a header without bytes.

A device's memory is not mapped. Its owner moves it through a window of two slots, which the memfd
is; the address says how long a slot is:

      | HELLO window [16] ----------> |
      | <-- STAGED length, slot bytes |
      | MOVE op, slot, epoch, ranges, |   epoch: the region's, or a grant's
      |      immediate -------------> |   between the slot and the device; counted behind it
      | <-- MOVED status              |

With cuda-ipc the peer opens the device's allocations itself: SHARED instead of OK has what that
takes behind it (msgpack), and descriptors beside it.

The socket's name is abstract (Linux): no file is left behind. Abstract names know no
permissions, so the owner asks the kernel which process calls.

Source: unix(7), "Abstract sockets" and SO_PEERCRED.
"""

import itertools
import os
import socket
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from pdgate.transfer.base import Op

MAGIC: Final = b"PDSM"
MAX_REPLY_BYTES: Final = 64 << 10
MAX_FDS: Final = 192
MAX_RANGES: Final = 512
"""Of a MOVE."""

_HELLO = struct.Struct("<4s16s")
_REPLY = struct.Struct("<4sBxxxQQ")
_LANDED = struct.Struct("<4sI")
_MOVE = struct.Struct("<4sBBBxI16sI")
_RANGE_BYTES: Final = 16
_MOVED = struct.Struct("<4sB")
_OPS: Final = {1: Op.READ, 2: Op.WRITE}
_NUMBERS: Final = {op: number for number, op in _OPS.items()}
_CREDENTIALS = struct.Struct("3i")


class ShmStatus(IntEnum):
    OK = 0
    STALE = 1
    REFUSED = 2
    STAGED = 3
    SHARED = 4
    OUT_OF_BOUNDS = 5
    FORBIDDEN = 6
    FAILED = 7
    NO_ROOM = 8


class Reply(NamedTuple):
    """
    Attributes:
        length: Of the region.
        fds: The caller closes them.
        more: Of SHARED.
    """

    status: ShmStatus
    length: int
    address: int
    fds: list[int]
    more: bytes


class SlotMove(NamedTuple):
    """Between a slot of the window, from its start on, and ranges of the region in their order."""

    op: Op
    slot: int
    epoch: bytes
    offsets: Sequence[int]
    lengths: Sequence[int]
    immediate: int | None


class BadShmMessage(Exception):
    """The bytes are not ours."""


def path(name: str) -> str:
    return f"\0{name}"


def new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def same_user(sock: socket.socket) -> bool:
    _, uid = _peer(sock)
    return uid in (os.geteuid(), 0)


def process(sock: socket.socket) -> int:
    """Id of the process at the other end when it began to listen; 0 if we cannot see it."""
    pid, _ = _peer(sock)
    return pid


def _peer(sock: socket.socket) -> tuple[int, int]:
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(data)
    return pid, uid


def send_hello(sock: socket.socket, epoch: bytes) -> None:
    sock.sendall(_HELLO.pack(MAGIC, epoch))


def receive_hello(sock: socket.socket) -> bytes | None:
    """The epoch; None if the peer left. Raises BadShmMessage, OSError."""
    data = _received(sock, _HELLO.size)
    return None if data is None else data[4:]


def send_reply(
    sock: socket.socket,
    status: ShmStatus,
    length: int = 0,
    fds: Sequence[int] = (),
    address: int = 0,
    more: bytes = b"",
) -> None:
    message = _REPLY.pack(MAGIC, status, length, address) + more
    if fds:
        socket.send_fds(sock, [message], list(fds))
    else:
        sock.sendall(message)


def receive_reply(sock: socket.socket) -> Reply:
    """Raises BadShmMessage, OSError."""
    data, fds, _, _ = socket.recv_fds(sock, MAX_REPLY_BYTES, MAX_FDS)
    if not data:
        raise ConnectionResetError("the owner hung up")
    if len(data) < _REPLY.size or data[:4] != MAGIC or data[4] not in tuple(ShmStatus):
        for fd in fds:
            os.close(fd)
        raise BadShmMessage
    _, status, length, address = _REPLY.unpack_from(data)
    return Reply(ShmStatus(status), length, address, fds, data[_REPLY.size :])


def send_landed(sock: socket.socket, immediate: int) -> None:
    sock.sendall(_LANDED.pack(MAGIC, immediate))


def receive_landed(sock: socket.socket) -> int | None:
    """The immediate; None if the peer left. Raises BadShmMessage, OSError."""
    data = _received(sock, _LANDED.size)
    return None if data is None else int(_LANDED.unpack(data)[1])


def send_move(sock: socket.socket, move: SlotMove) -> None:
    counted, immediate = move.immediate is not None, move.immediate or 0
    count = len(move.offsets)
    op = _NUMBERS[move.op]
    head = _MOVE.pack(MAGIC, op, move.slot, counted, immediate, move.epoch, count)
    flat = itertools.chain.from_iterable(zip(move.offsets, move.lengths, strict=True))
    sock.sendall(head + struct.pack(f"<{2 * count}Q", *flat))


def receive_move(sock: socket.socket) -> SlotMove | None:
    """None if the peer left. Raises BadShmMessage, OSError."""
    data = sock.recv(_MOVE.size + MAX_RANGES * _RANGE_BYTES + 1)
    if not data:
        return None
    if len(data) < _MOVE.size or data[:4] != MAGIC:
        raise BadShmMessage
    _, number, slot, counted, immediate, epoch, count = _MOVE.unpack_from(data)
    op = _OPS.get(number)
    if op is None or slot > 1 or counted > 1 or len(data) != _MOVE.size + count * _RANGE_BYTES:
        raise BadShmMessage
    flat = struct.unpack_from(f"<{2 * count}Q", data, _MOVE.size)
    return SlotMove(op, slot, epoch, flat[::2], flat[1::2], immediate if counted else None)


def send_moved(sock: socket.socket, status: ShmStatus) -> None:
    sock.sendall(_MOVED.pack(MAGIC, status))


def receive_moved(sock: socket.socket) -> ShmStatus:
    """Raises BadShmMessage, OSError."""
    data = _received(sock, _MOVED.size)
    if data is None:
        raise ConnectionResetError("the owner hung up")
    if data[4] not in tuple(ShmStatus):
        raise BadShmMessage
    return ShmStatus(data[4])


def _received(sock: socket.socket, size: int) -> bytes | None:
    """A message of this size; None if the other side left. Raises BadShmMessage, OSError."""
    data = sock.recv(size + 1)
    if not data:
        return None
    if len(data) != size or data[:4] != MAGIC:
        raise BadShmMessage
    return data
