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
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

from pdgate.transfer.base import PeerLost, TransferError
from pdgate.transfer.runtime.ranges import Piece

CHUNK_BYTES: Final = 8 << 20
"""Copied between two looks at whether the transfer is still waited for."""
MAX_PIECES: Final = 512
"""Below IOV_MAX (1024 on Linux), and as many as tcp sends at once."""

_libc = ctypes.CDLL(None, use_errno=True)


class Foreign:
    def __init__(self, pid: int, address: int) -> None:
        """Raises TransferError if the kernel cannot name the owner to us."""
        if pid <= 0:
            raise TransferError("the owner of the memory lives in another process namespace")
        self._pid = pid
        self._address = address

    def read(self, here: int, pieces: Sequence[Piece], look: Callable[[], None]) -> None:
        """`here` is the address of our region. `look` raises if it is time to stop."""
        self._copy(_libc.process_vm_readv, here, pieces, look)

    def write(self, here: int, pieces: Sequence[Piece], look: Callable[[], None]) -> None:
        self._copy(_libc.process_vm_writev, here, pieces, look)

    def _copy(
        self, call: Any, here: int, pieces: Sequence[Piece], look: Callable[[], None]
    ) -> None:
        for batch in batches(pieces):
            look()
            ours = _vector([(here + local, length) for local, _, length in batch])
            theirs = _vector([(self._address + remote, length) for _, remote, length in batch])
            wanted, count = sum([piece[2] for piece in batch]), ctypes.c_ulong(len(batch))
            done = call(self._pid, _start(ours), count, _start(theirs), count, ctypes.c_ulong(0))
            if done != wanted:
                raise _error(ctypes.get_errno() if done < 0 else 0)


def batches(pieces: Sequence[Piece], most_bytes: int = CHUNK_BYTES) -> Iterator[list[Piece]]:
    """In order, at most so many bytes and MAX_PIECES at a time; long pieces are cut."""
    batch: list[Piece] = []
    room = most_bytes
    for here, there, whole in pieces:
        done = 0
        while done < whole:
            length = min(whole - done, room)
            batch.append((here + done, there + done, length))
            done += length
            room -= length
            if not room or len(batch) == MAX_PIECES:
                yield batch
                batch, room = [], most_bytes
    if batch:
        yield batch


def _vector(pieces: Iterable[tuple[int, int]]) -> "array[int]":
    """A `struct iovec` for each (address, bytes)."""
    return array("Q", chain.from_iterable(pieces))


def _start(vector: "array[int]") -> ctypes.c_void_p:
    return ctypes.c_void_p(vector.buffer_info()[0])


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
