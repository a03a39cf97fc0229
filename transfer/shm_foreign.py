"""Memory that only its owner maps, copied from outside: process_vm_readv and process_vm_writev.

    peer                                        owner
      | HELLO epoch                 ----------> |
      | <-- address, and a memfd of one page    |   which holds the epoch, no bytes
      | the kernel copies; is the epoch still there, and the owner alive?

One copy, like mapping it would take, and without the interpreter's lock. The other way, a
shared segment that the owner copies in and out of, takes two copies and the owner's time.

What is needed is what a debugger needs (ptrace(2), "Ptrace access mode checking"): the same
user, one process namespace, and kernel.yama.ptrace_scope 0. The kernel knows the owner by
its process id alone. We look for the owner's end just before and after each copy of
CHUNK_BYTES, so only a process that takes over its id in between could be touched.

Source: process_vm_readv(2).
"""

import ctypes
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from pdgate.transfer.base import PeerLost, Range, TransferError

CHUNK_BYTES: Final = 8 << 20
MAX_PIECES: Final = 512
"""Below IOV_MAX (1024 on Linux), and as many as tcp sends at once."""

Piece = tuple[int, int, int]
"""Address here, address there, bytes."""

_libc = ctypes.CDLL(None, use_errno=True)


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class Foreign:
    def __init__(self, pid: int, address: int) -> None:
        """Raises TransferError if the kernel cannot name the owner to us."""
        if pid <= 0:
            raise TransferError("the owner of the memory lives in another process namespace")
        self._pid = pid
        self._address = address

    def read(self, here: int, ranges: Sequence[Range], look: Callable[[], None]) -> None:
        """`here` is the address of our region. `look` raises if it is time to stop."""
        self._copy(_libc.process_vm_readv, here, ranges, look)

    def write(self, here: int, ranges: Sequence[Range], look: Callable[[], None]) -> None:
        self._copy(_libc.process_vm_writev, here, ranges, look)

    def _copy(
        self, call: Any, here: int, ranges: Sequence[Range], look: Callable[[], None]
    ) -> None:
        for batch in batches(ranges):
            look()
            ours = _vector([(here + local, length) for local, _, length in batch])
            theirs = _vector([(self._address + remote, length) for _, remote, length in batch])
            wanted = sum(length for _, _, length in batch)
            count = len(batch)
            done = call(self._pid, ours, ctypes.c_ulong(count), theirs, ctypes.c_ulong(count), 0)
            if done != wanted:
                raise _error(ctypes.get_errno() if done < 0 else 0)


def batches(ranges: Sequence[Range]) -> Iterator[list[Piece]]:
    """In order, at most CHUNK_BYTES and MAX_PIECES at a time; long ranges are cut."""
    batch: list[Piece] = []
    room = CHUNK_BYTES
    for one in ranges:
        done = 0
        while done < one.length:
            length = min(one.length - done, room)
            batch.append((one.local + done, one.remote + done, length))
            done += length
            room -= length
            if not room or len(batch) == MAX_PIECES:
                yield batch
                batch, room = [], CHUNK_BYTES
    if batch:
        yield batch


def _vector(pieces: Sequence[tuple[int, int]]) -> Any:
    return (_IoVec * len(pieces))(*(_IoVec(base, length) for base, length in pieces))


def _error(number: int) -> TransferError:
    match number:
        case errno.ESRCH:
            return PeerLost("the owner of the memory is gone")
        case errno.EPERM:
            return TransferError(
                "this process may not reach into the owner of the memory: it takes the same "
                "user and kernel.yama.ptrace_scope 0, or memory that the backend allocated"
            )
        case 0:
            return TransferError("the owner's memory ends early")
    return TransferError(f"the owner's memory cannot be copied: {os.strerror(number)}")
