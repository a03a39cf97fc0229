"""KV transfer between processes of one host: both map the memory, the reader copies.

    peer                                  owner
      | hello, epoch   --- unix socket --> |
      | <-- file descriptor of the memory  |
      | copies pages; is the epoch still   |
      | there, and the owner alive?        |

No process serves the bytes, so a busy owner slows no peer down. Whether a copy is good is
decided after it: a region that was closed meanwhile, or an owner that died, fails it.

Memory that the backend did not allocate is copied by the kernel (foreign.py).

Both have to run as the same user and in the same network namespace (that is where
abstract socket names live): one host, or containers of one pod.
"""

import secrets
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from pdgate.transfer import descriptors
from pdgate.transfer.base import Descriptor, Op, PeerLost, Region, StaleDescriptor, TransferError
from pdgate.transfer.memory import DeviceMemory, Memory
from pdgate.transfer.memory import address as address_of
from pdgate.transfer.memory import view as view_of
from pdgate.transfer.runtime.jobs import Plan
from pdgate.transfer.runtime.moving import Moving, Order
from pdgate.transfer.runtime.ranges import Piece
from pdgate.transfer.runtime.running import Interrupted, Running
from pdgate.transfer.shm.links import Link, Links
from pdgate.transfer.shm.owner import Owner, ShmMemory, ShmRegion
from pdgate.transfer.shm.segment import Segment

CHUNK_BYTES = 8 << 20
"""Copied between two looks at whether anybody still waits."""

AT_ONCE_BYTES = 1 << 20
AT_ONCE_PIECES = 64
"""Up to here a copy takes at most 0.1 ms, and to hand it to a thread and back about as long."""

Bytes = npt.NDArray[np.uint8]


class Shm(Moving):
    name: ClassVar = "shm"

    def __init__(self, host: str = "", advertise: str = "", *, socket_name: str = "") -> None:
        """Listens on this abstract socket; a random one if empty. Raises OSError.

        It needs no network, so it makes nothing of `host` and `advertise`.
        """
        super().__init__()
        self._socket_name = socket_name or f"pdgate-{secrets.token_hex(8)}"
        self._owner = Owner(self._socket_name)
        self._links = Links()

    def allocate(self, length: int) -> Region:
        return self._open(length, None)

    def register(self, memory: Memory) -> Region:
        if isinstance(memory, DeviceMemory):
            raise TransferError(f"{self.name} does not move memory of {memory.device}")
        registered = view_of(memory)
        return self._open(len(registered), registered)

    def adopt(self, fd: int, length: int) -> Region:
        descriptor = Descriptor(self.name, descriptors.new_epoch(), length, {})
        return ShmMemory(descriptor, Segment(fd, length).memory)

    def plan(self, order: Order) -> Plan:
        assert isinstance(order.local, ShmMemory)
        local = order.local
        name = descriptors.text(order.remote.address, "socket")

        def work(transfer: Running) -> None:
            link = self._links.get(name, order.epoch, order.remote.length, transfer)
            try:
                link.check()
                _copy_all(transfer, link, order.op, local, order.pieces)
                link.check()
                # After the copy: a system call in between orders the two for other cores.
                if order.immediate is not None:
                    transfer.on_interrupt(None)
                    link.landed(order.immediate)
            except (PeerLost, StaleDescriptor):
                self._links.drop(order.epoch)
                raise

        return Plan(work, at_once=self._at_once(order))

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._owner.close()
        self._jobs.close()
        self._links.close()

    def _open(self, length: int, registered: memoryview | None) -> Region:
        with self.open_still():
            epoch = descriptors.new_epoch()
            descriptor = Descriptor(self.name, epoch, length, {"socket": self._socket_name})
            region = ShmRegion(descriptor, self._owner, registered)
            self._owner.add(region)
        return region

    def _at_once(self, order: Order) -> bool:
        """To meet the owner, and to copy by the kernel, may take its time."""
        if order.bytes > AT_ONCE_BYTES or len(order.pieces) > AT_ONCE_PIECES:
            return False
        link = self._links.known(order.epoch)
        if link is None or link.foreign is not None:
            return False
        return order.immediate is None or link.has_room()


def _copy_all(
    transfer: Running, link: Link, op: Op, local: ShmMemory, pieces: Sequence[Piece]
) -> None:
    if link.foreign is not None:
        move = link.foreign.read if op is Op.READ else link.foreign.write
        move(address_of(local.memory), pieces, lambda: _look(transfer, link))
        return
    ours, theirs = local.bytes, link.segment.bytes
    for here, there, length in pieces:
        mine, its = ours[here : here + length], theirs[there : there + length]
        if op is Op.READ:
            _copy(transfer, mine, its)
        else:
            _copy(transfer, its, mine)


def _look(transfer: Running, link: Link) -> None:
    """Between two pieces of a long copy."""
    if transfer.over:
        raise Interrupted
    link.check()


def _copy(transfer: Running, to: Bytes, source: Bytes) -> None:
    """Slice by slice: fancy indexing over pages is half as fast (measured)."""
    if len(to) <= CHUNK_BYTES and not transfer.over:
        to[:] = source
        return
    for start in range(0, len(to), CHUNK_BYTES):
        if transfer.over:
            raise Interrupted
        to[start : start + CHUNK_BYTES] = source[start : start + CHUNK_BYTES]
