"""KV transfer between processes of one host: both map the memory, the reader copies.

    peer                                  owner
      | hello, epoch   --- unix socket --> |
      | <-- file descriptor of the memory  |
      | copies pages; is the epoch still   |
      | there, and the owner alive?        |

No process serves the bytes, so a busy owner slows no peer down. Whether a copy is good is
decided after it: a region that was closed meanwhile, or an owner that died, fails it.

Memory that the backend did not allocate is copied by the kernel (foreign.py). A device's is moved by
its owner, through slots that both map (windows.py, staged.py).

Both have to run as the same user and in the same network namespace (that is where
abstract socket names live): one host, or containers of one pod.
"""

import secrets
from collections.abc import Sequence
from contextlib import nullcontext
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from pdgate.transfer import descriptors
from pdgate.transfer.base import Descriptor, Op, Region
from pdgate.transfer.device.base import Device
from pdgate.transfer.device.opening import KINDS
from pdgate.transfer.memory import HOST, DeviceMemory, Memory
from pdgate.transfer.memory import view as view_of
from pdgate.transfer.runtime.jobs import TransferPlan
from pdgate.transfer.runtime.moving import MoveOrder, Moving
from pdgate.transfer.runtime.passage import Stagings, device_of
from pdgate.transfer.runtime.ranges import Piece
from pdgate.transfer.runtime.running import RunningTransfer, TransferInterrupted
from pdgate.transfer.shm.foreign import CHUNK_BYTES
from pdgate.transfer.shm.links import ShmLink, ShmLinks
from pdgate.transfer.shm.owner import ShmMemory, ShmOwner, ShmRegion
from pdgate.transfer.shm.segment import Segment
from pdgate.transfer.shm.staged import through_buffers
from pdgate.transfer.shm.windows import WINDOW, WindowRegion, Windows

AT_ONCE_BYTES = 1 << 20
AT_ONCE_PIECES = 64
"""Up to here a copy takes at most 0.1 ms, and to hand it to a thread and back about as long."""

Bytes = npt.NDArray[np.uint8]

_AS_IT_IS = nullcontext()


class ShmBackend(Moving):
    name: ClassVar = "shm"

    moves: ClassVar = frozenset({HOST, *KINDS})

    def __init__(
        self,
        host: str = "",
        advertise: str = "",
        *,
        socket_name: str = "",
        staging_mib: int = 64,
    ) -> None:
        """Listens on this abstract socket; a random one if empty. Raises OSError, ValueError.

        It needs no network, so it makes nothing of `host` and `advertise`. `staging_mib`: pinned
        memory that a device's bytes pass through, for peers and for what we move.
        """
        super().__init__()
        self._windows = Windows(staging_mib)
        self._stagings = Stagings(staging_mib)
        self._socket_name = socket_name or f"pdgate-{secrets.token_hex(8)}"
        self._owner = ShmOwner(self._socket_name)
        self._links = ShmLinks()

    def allocate(self, length: int) -> Region:
        return self._open(length, None)

    def register(self, memory: Memory) -> Region:
        if isinstance(memory, DeviceMemory):
            self.check_pair(memory.device, memory.device)
            return self._open_device(memory)
        registered = view_of(memory)
        return self._open(len(registered), registered)

    def adopt(self, fd: int, length: int) -> Region:
        descriptor = Descriptor(self.name, descriptors.new_epoch(), length, {})
        return ShmMemory(descriptor, Segment(fd, length).memory)

    def plan(self, order: MoveOrder) -> TransferPlan:
        address = order.remote.address
        name = descriptors.text(address, "socket")
        key = descriptors.epoch_bytes(str(address[WINDOW])) if WINDOW in address else order.epoch

        def work(transfer: RunningTransfer) -> None:
            link = self._links.get(name, key, order.remote.length, transfer, self.opener(order))
            try:
                with link.used() if link.opened is not None else _AS_IT_IS:
                    link.check()
                    counted = self.move(transfer, link, order)
                    link.check()
                # After the copy: a system call in between orders the two for other cores.
                if order.immediate is not None and not counted:
                    transfer.on_interrupt(None)
                    link.landed(order.immediate)
            except BaseException:
                if not link.good:
                    self._links.drop(link)
                raise

        return TransferPlan(work, at_once=self._at_once(order))

    def opener(self, order: MoveOrder) -> Device | None:
        """What opens a peer's allocations, where peers share them."""
        return None

    def move(self, transfer: RunningTransfer, link: ShmLink, order: MoveOrder) -> bool:
        """Whether a counted write has been counted too. Raises TransferError, TransferInterrupted."""
        local, op, pieces = order.local, order.op, order.pieces
        if link.window is not None:
            link.window.move(transfer, op, local, order.epoch, pieces, order.immediate)
            return True
        if local.on_device is not None:
            staged = self._stagings.pool(local.on_device, served=False)
            with staged.taken(lambda: transfer.over) as lane:
                through_buffers(
                    lane,
                    local.on_device,
                    op,
                    pieces,
                    lambda view, beside: _copy_all(
                        transfer, link, op, np.frombuffer(view, np.uint8), beside
                    ),
                )
            return False
        assert isinstance(local, ShmMemory)
        _copy_all(transfer, link, op, local.bytes, pieces)
        return False

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._owner.close()
        self._jobs.close()
        self._links.close()
        self._stagings.close()

    def _open(self, length: int, registered: memoryview | None) -> Region:
        with self.open_still():
            epoch = descriptors.new_epoch()
            descriptor = Descriptor(self.name, epoch, length, {"socket": self._socket_name})
            region = ShmRegion(descriptor, self._owner, registered)
            self._owner.add(region)
        return region

    def _open_device(self, memory: DeviceMemory) -> Region:
        device = device_of(memory)
        with self.open_still():
            descriptor = descriptors.of_memory(self.name, memory, {"socket": self._socket_name})
            region = WindowRegion(memory, descriptor, device, self._windows, self._owner.forget)
            self._owner.add(region)
        return region

    def _at_once(self, order: MoveOrder) -> bool:
        """To meet the owner, and to copy by the kernel, may take its time."""
        if order.bytes > AT_ONCE_BYTES or len(order.pieces) > AT_ONCE_PIECES:
            return False
        link = self._links.known(order.epoch)
        if link is None or link.foreign is not None or order.local.on_device is not None:
            return False
        return order.immediate is None or link.has_room()


def _copy_all(
    transfer: RunningTransfer, link: ShmLink, op: Op, ours: Bytes, pieces: Sequence[Piece]
) -> None:
    if link.foreign is not None:
        move = link.foreign.read if op is Op.READ else link.foreign.write
        move(ours.ctypes.data, pieces, lambda: _look(transfer, link))
        return
    theirs = link.segment.bytes
    for here, there, length in pieces:
        mine, its = ours[here : here + length], theirs[there : there + length]
        if op is Op.READ:
            _copy(transfer, mine, its)
        else:
            _copy(transfer, its, mine)


def _look(transfer: RunningTransfer, link: ShmLink) -> None:
    """Between two pieces of a long copy."""
    if transfer.over:
        raise TransferInterrupted
    link.check()


def _copy(transfer: RunningTransfer, to: Bytes, source: Bytes) -> None:
    """Slice by slice: fancy indexing over pages is half as fast (measured)."""
    if len(to) <= CHUNK_BYTES and not transfer.over:
        to[:] = source
        return
    for start in range(0, len(to), CHUNK_BYTES):
        if transfer.over:
            raise TransferInterrupted
        to[start : start + CHUNK_BYTES] = source[start : start + CHUNK_BYTES]
