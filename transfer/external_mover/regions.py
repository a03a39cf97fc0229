"""Memory that a library moves, and the transfers that are inside it.

A region that is closed lets no peer in, waits for those inside and only then leaves the
library. Neither Mooncake nor NIXL can stop a transfer, so what we allocated for a region
that a peer does not leave, or left without a word, is kept for good: bytes may still be
on their way, and losing memory is better than using it twice. Memory that the caller
allocated is the caller's to keep; the log says so.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pdgate.transfer import memory as memories
from pdgate.transfer.base import Descriptor, StaleDescriptor
from pdgate.transfer.external_mover.library import Library
from pdgate.transfer.memory import DeviceMemory
from pdgate.transfer.runtime.arrivals import Arrivals
from pdgate.transfer.runtime.regions import LocalMemory

LEAVE_SECONDS = 5.0

log = logging.getLogger(__name__)

_kept_for_good: list["VisitedMemory"] = []


def leave_by() -> float:
    """When the transfers inside now must have left, on time.monotonic()'s clock."""
    return time.monotonic() + LEAVE_SECONDS


class VisitedMemory(LocalMemory):
    """Memory that we may move.

    Attributes:
        base: Address of its first byte.
        stranded: It was closed, and a peer may still be moving bytes in it.
    """

    def __init__(
        self, memory: memoryview | DeviceMemory, descriptor: Descriptor, library: Library
    ) -> None:
        """Raises TransferError, ValueError."""
        if not descriptor.length:
            raise ValueError("there is nothing to move in no memory")
        super().__init__(memory, descriptor)
        if isinstance(memory, DeviceMemory):
            self.base = memory.address
        else:
            self.base = memories.address(memory)
        self.stranded = False
        self._library = library
        self._changed = threading.Condition()
        self._inside = 0
        self._spoiled = False
        if self.on_device is None:
            library.register(self.base, descriptor.length)
        else:
            library.register_on(self.place, self.base, descriptor.length)

    @contextmanager
    def visit(self) -> Iterator[bool]:
        """False if it is closed; otherwise the memory stays for the block."""
        with self._changed:
            usable = not self._closed
            self._inside += usable
        try:
            yield usable
        finally:
            with self._changed:
                self._inside -= usable
                self._changed.notify_all()

    def spoil(self) -> None:
        """A visitor failed or vanished: what it sent may still arrive."""
        self._spoiled = True

    def close(self) -> None:
        if self.shut():
            self.vacate(leave_by())

    def shut(self) -> bool:
        """Lets no peer in any more; False if that was so before."""
        with self._changed:
            was, self._closed = self._closed, True
        return not was

    def vacate(self, until: float) -> None:
        """Leaves the library when the last one has left; after `until` (monotonic) never."""
        with self._changed:
            self.stranded = not self._changed.wait_for(
                lambda: not self._inside, max(0.0, until - time.monotonic())
            )
        if not self.stranded:
            self._library.unregister(self.base, self.descriptor.length)
        if self._spoiled or self.stranded:
            log.warning(
                "bytes may still arrive in %d bytes of closed memory", self.descriptor.length
            )
            _kept_for_good.append(self)


class VisitedRegion(VisitedMemory):
    """Memory that peers may reach."""

    arrivals: Arrivals

    def __init__(
        self,
        memory: memoryview | DeviceMemory,
        descriptor: Descriptor,
        library: Library,
        forget: Callable[["VisitedRegion"], None],
        fd: int | None = None,
    ) -> None:
        """`fd`: of the file that the memory is, if it is one; it is closed with the region."""
        super().__init__(memory, descriptor, library)
        self.arrivals = Arrivals()
        self._forget = forget
        self._fd = fd

    def share(self) -> int | None:
        return self._fd

    def shut(self) -> bool:
        if not super().shut():
            return False
        if self._fd is not None:
            os.close(self._fd)
        self._forget(self)
        self.arrivals.fail(StaleDescriptor("the region was closed"))
        return True
