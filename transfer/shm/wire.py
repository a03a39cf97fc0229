"""Messages of the shm backend on its unix socket (SOCK_SEQPACKET: a message is a message).

    peer                              owner
      | HELLO epoch [16] -----------> |   same user? epoch known?
      | <-- OK length, address, memfd |   or STALE
      | LANDED immediate -----------> |   after each counted write
      |            ...                |
      | <-- end of file               |   the owner is gone, however it went

The address is 0 where the memfd is the memory; else the memory is the owner's alone, at
this address, and the memfd is a header without bytes.

The socket's name is abstract (Linux): no file is left behind. Abstract names know no
permissions, so the owner asks the kernel which process calls.

Source: unix(7), "Abstract sockets" and SO_PEERCRED.
"""

import os
import socket
import struct
from enum import IntEnum
from typing import Final, NamedTuple

MAGIC: Final = b"PDSM"

_HELLO = struct.Struct("<4s16s")
_REPLY = struct.Struct("<4sBxxxQQ")
_LANDED = struct.Struct("<4sI")
_CREDENTIALS = struct.Struct("3i")


class Status(IntEnum):
    OK = 0
    STALE = 1
    REFUSED = 2


class Reply(NamedTuple):
    """
    Attributes:
        length: Of the region.
        fds: The caller closes them.
    """

    status: Status
    length: int
    address: int
    fds: list[int]


class BadMessage(Exception):
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
    """The epoch; None if the peer left. Raises BadMessage, OSError."""
    data = sock.recv(_HELLO.size + 1)
    if not data:
        return None
    if len(data) != _HELLO.size or data[:4] != MAGIC:
        raise BadMessage
    return data[4:]


def send_reply(
    sock: socket.socket, status: Status, length: int = 0, fd: int | None = None, address: int = 0
) -> None:
    message = _REPLY.pack(MAGIC, status, length, address)
    if fd is None:
        sock.sendall(message)
    else:
        socket.send_fds(sock, [message], [fd])


def receive_reply(sock: socket.socket) -> Reply:
    """Raises BadMessage, OSError."""
    data, fds, _, _ = socket.recv_fds(sock, _REPLY.size + 1, 1)
    if not data:
        raise ConnectionResetError("the owner hung up")
    if len(data) != _REPLY.size or data[:4] != MAGIC or data[4] not in tuple(Status):
        for fd in fds:
            os.close(fd)
        raise BadMessage
    _, status, length, address = _REPLY.unpack(data)
    return Reply(Status(status), length, address, fds)


def send_landed(sock: socket.socket, immediate: int) -> None:
    sock.sendall(_LANDED.pack(MAGIC, immediate))


def receive_landed(sock: socket.socket) -> int | None:
    """The immediate; None if the peer left. Raises BadMessage, OSError."""
    data = sock.recv(_LANDED.size + 1)
    if not data:
        return None
    if len(data) != _LANDED.size or data[:4] != MAGIC:
        raise BadMessage
    return int(_LANDED.unpack(data)[1])
