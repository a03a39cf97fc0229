"""KV transfer between processes of one host: both map the memory, the reader copies.

    peer                                  owner
      | hello, epoch   --- unix socket --> |
      | <-- file descriptor of the memory  |
      | copies pages; is the epoch still   |
      | there, and the owner alive?        |

No process serves the bytes, so a busy owner slows nobody down. Whether a copy is good is
decided after it: a region that was closed meanwhile, or an owner that died, fails it.

Memory that the backend did not allocate is copied by the kernel (shm_foreign.py).

Both have to run as the same user and in the same network namespace (that is where
abstract socket names live): one host, or containers of one pod.
"""

import secrets
import threading
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from pdgate.transfer import descriptors
from pdgate.transfer import ranges as lists
from pdgate.transfer.base import (
    Backend,
    Descriptor,
    PeerLost,
    Range,
    Region,
    StaleDescriptor,
    Transfer,
    TransferError,
)
from pdgate.transfer.jobs import Jobs
from pdgate.transfer.memory import Memory
from pdgate.transfer.memory import address as address_of
from pdgate.transfer.memory import view as view_of
from pdgate.transfer.running import Interrupted, Running
from pdgate.transfer.shm_links import Link, Links
from pdgate.transfer.shm_owner import Owner, ShmMemory, ShmRegion
from pdgate.transfer.shm_segment import Segment

CHUNK_BYTES = 8 << 20
"""Copied between two looks at whether anybody still waits."""

Bytes = npt.NDArray[np.uint8]
Copy = Callable[[Running, Link, Sequence[Range]], None]


class Shm(Backend):
    name: ClassVar = "shm"

    def __init__(self, host: str = "", advertise: str = "", *, socket_name: str = "") -> None:
        """Listens on this abstract socket; a random one if empty. Raises OSError.

        It needs no network, so it makes nothing of `host` and `advertise`.
        """
        self._socket_name = socket_name or f"pdgate-{secrets.token_hex(8)}"
        self._owner = Owner(self._socket_name)
        self._links = Links()
        self._jobs = Jobs(self.name)
        self._lock = threading.Lock()
        self._closed = False

    def allocate(self, length: int) -> Region:
        return self._open(length, None)

    def register(self, memory: Memory) -> Region:
        registered = view_of(memory)
        return self._open(len(registered), registered)

    def adopt(self, fd: int, length: int) -> Region:
        descriptor = Descriptor(self.name, descriptors.new_epoch(), length, {})
        return ShmMemory(descriptor, Segment(fd, length).memory)

    def read(
        self, local: Region, remote: Descriptor, ranges: Sequence[Range], timeout_seconds: float
    ) -> Transfer:
        region = self._ours(local)

        def copy(transfer: Running, link: Link, merged: Sequence[Range]) -> None:
            if link.foreign is not None:
                here = address_of(region.memory)
                link.foreign.read(here, merged, lambda: _look(transfer, link))
            else:
                for one in merged:
                    theirs = link.segment.bytes[one.remote : one.remote + one.length]
                    _copy(transfer, region.bytes[one.local : one.local + one.length], theirs)
            link.check()

        return self._start("read", copy, region, remote, ranges, timeout_seconds)

    def write(
        self,
        local: Region,
        remote: Descriptor,
        ranges: Sequence[Range],
        timeout_seconds: float,
        immediate: int | None = None,
    ) -> Transfer:
        descriptors.check_immediate(immediate)
        region = self._ours(local)

        def copy(transfer: Running, link: Link, merged: Sequence[Range]) -> None:
            if link.foreign is not None:
                here = address_of(region.memory)
                link.foreign.write(here, merged, lambda: _look(transfer, link))
            else:
                for one in merged:
                    theirs = link.segment.bytes[one.remote : one.remote + one.length]
                    _copy(transfer, theirs, region.bytes[one.local : one.local + one.length])
            link.check()
            # After the copy: a system call in between orders the two for other cores.
            if immediate is not None:
                transfer.on_interrupt(None)
                link.landed(immediate)

        return self._start("write", copy, region, remote, ranges, timeout_seconds)

    def expect(self, local: Region, immediate: int, count: int, timeout_seconds: float) -> Transfer:
        descriptors.check_immediate(immediate)
        region = self._ours(local)
        if not isinstance(region, ShmRegion):
            raise TypeError("nothing can land in memory that peers cannot reach")
        transfer = self._jobs.expectation(f"expecting {count} x {immediate}", timeout_seconds)
        region.arrivals.expect(immediate, count, transfer)
        return transfer

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._owner.close()
        self._jobs.close()
        self._links.close()

    def _open(self, length: int, registered: memoryview | None) -> Region:
        with self._lock:
            if self._closed:
                raise TransferError("the backend is closed")
            epoch = descriptors.new_epoch()
            descriptor = Descriptor(self.name, epoch, length, {"socket": self._socket_name})
            region = ShmRegion(descriptor, self._owner, registered)
            self._owner.add(region)
        return region

    def _start(
        self,
        verb: str,
        copy: Copy,
        region: ShmMemory,
        remote: Descriptor,
        ranges: Sequence[Range],
        timeout_seconds: float,
    ) -> Transfer:
        descriptors.check_backend(remote, self.name)
        lists.check(ranges, len(region.memory), remote.length)
        name = descriptors.text(remote.address, "socket")
        epoch = descriptors.epoch_bytes(remote.epoch)
        merged = lists.merge(ranges)

        def move(transfer: Running) -> None:
            link = self._links.get(name, epoch, remote.length, transfer)
            try:
                link.check()
                copy(transfer, link, merged)
            except (PeerLost, StaleDescriptor):
                self._links.drop(epoch)
                raise

        what = f"{verb} of {sum(one.length for one in merged)} bytes at {name}"
        return self._jobs.start(what, timeout_seconds, move)

    @staticmethod
    def _ours(region: Region) -> ShmMemory:
        if not isinstance(region, ShmMemory):
            raise TypeError("the region belongs to another backend")
        if region.closed:
            raise StaleDescriptor("our own region is closed")
        return region


def _look(transfer: Running, link: Link) -> None:
    """Between two pieces of a long copy."""
    if transfer.over:
        raise Interrupted
    link.check()


def _copy(transfer: Running, to: Bytes, source: Bytes) -> None:
    """Slice by slice: fancy indexing over pages is half as fast (measured)."""
    for start in range(0, len(to), CHUNK_BYTES):
        if transfer.over:
            raise Interrupted
        to[start : start + CHUNK_BYTES] = source[start : start + CHUNK_BYTES]
