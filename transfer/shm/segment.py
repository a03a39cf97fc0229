"""A shared memory segment: one page of header, then the region.

    0     magic "PDSHM1" padded to 8, epoch [16]      all zero once the owner closed it
    4096  the region's bytes

The memory is an anonymous file (memfd): it has no name that could be left behind, so it
goes with the last process that maps it, even if that one is killed. Its size is
sealed, because reading a mapping that a peer cut short would kill us (SIGBUS).

Source: memfd_create(2), fcntl(2) "File Sealing".
"""

import fcntl
import mmap
import os
from typing import Final

import numpy as np
import numpy.typing as npt

from pdgate.transfer.base import StaleDescriptor, TransferError
from pdgate.transfer.runtime import memfd

HEADER_BYTES: Final = 4096
MAGIC: Final = b"PDSHM1\0\0"
_EPOCH_END: Final = len(MAGIC) + 16
_SIZE_IS_FIXED: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def create(length: int, epoch: bytes) -> tuple[int, "Segment"]:
    """A new segment and its file descriptor, which the caller closes.

    Raises TransferError, OSError.
    """
    fd = memfd.create(HEADER_BYTES + length, os.MFD_ALLOW_SEALING)
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SIZE_IS_FIXED | fcntl.F_SEAL_SEAL)
        segment = Segment(fd, length)
    except BaseException:
        os.close(fd)
        raise
    segment.stamp(epoch)
    return fd, segment


def stamp_of(epoch: bytes) -> bytes:
    """What the header begins with while the region is open."""
    return MAGIC + epoch


class Segment:
    """A mapped segment, ours or a peer's."""

    def __init__(self, fd: int, length: int) -> None:
        """Raises TransferError if the file is not what its owner said, OSError."""
        if os.fstat(fd).st_size != HEADER_BYTES + length:
            raise TransferError(f"the peer's segment does not have {length} bytes")
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SIZE_IS_FIXED != _SIZE_IS_FIXED:
            raise TransferError("the peer's segment is not sealed")
        self._map = mmap.mmap(fd, HEADER_BYTES + length)
        self._header = memoryview(self._map)[:HEADER_BYTES]
        self.memory = memoryview(self._map)[HEADER_BYTES:]
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(self.memory, np.uint8)

    def stamp(self, epoch: bytes) -> None:
        self._header[:_EPOCH_END] = stamp_of(epoch)

    def revoke(self) -> None:
        self._header[:_EPOCH_END] = bytes(_EPOCH_END)

    def check(self, stamp: bytes) -> None:
        """Raises StaleDescriptor if the owner has closed it; `stamp` as of `stamp_of`."""
        if self._header[:_EPOCH_END] != stamp:
            raise StaleDescriptor("the region was closed by its owner")
