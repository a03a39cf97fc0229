"""KV transfer between devices of one host: the peer opens the owner's allocations and copies.

    peer                                          owner
      | HELLO epoch                 ----------->    same user? region open?
      | <-- handles or descriptors of the           cuIpc, or cuMemExportToShareableHandle
      |     allocations, and a page with the epoch
      | copies device to device; is the epoch still there, and the owner alive?
      | LANDED immediate            ----------->

It is shm in all but the copy, and moves host memory as shm does: contexts go that way. No process
serves the bytes. A page list goes to the device as one batch of copies.

A region that closes asks its peers to close what they have opened, and waits for them: the driver
leaves undefined what becomes of memory that is freed before. A peer that is frozen keeps it open,
and the log says so.

Source: CUDA 13.0, cuda.h, cuIpcOpenMemHandle, cuIpcCloseMemHandle ("undefined behavior").
"""

import logging
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Final

from pdgate.transfer import descriptors
from pdgate.transfer.base import Descriptor, Op, Region, StaleDescriptor, TransferError
from pdgate.transfer.device import sharing
from pdgate.transfer.device.base import Device, DeviceStream, SharedDeviceMemory, wait
from pdgate.transfer.device.staging import quiet
from pdgate.transfer.memory import DeviceMemory, kind
from pdgate.transfer.runtime.arrivals import Arrivals
from pdgate.transfer.runtime.moving import MoveOrder
from pdgate.transfer.runtime.passage import device_of
from pdgate.transfer.runtime.running import RunningTransfer, TransferInterrupted
from pdgate.transfer.shm import wire
from pdgate.transfer.shm.backend import ShmBackend
from pdgate.transfer.shm.links import ShmLink
from pdgate.transfer.shm.owner import Owned, ShmOwner
from pdgate.transfer.shm.segment import create

BATCH_PIECES: Final = 4096
BATCH_BYTES: Final = 256 << 20
"""Copied between two looks at whether the copy is still wanted."""
CLOSE_SECONDS: Final = 5.0

log = logging.getLogger(__name__)


class CudaIpcBackend(ShmBackend):
    name: ClassVar = "cuda-ipc"

    def check_pair(self, ours: str, theirs: str) -> None:
        super().check_pair(ours, theirs)
        if kind(ours) != kind(theirs):
            raise TransferError(
                f"{self.name} copies from a device to a device: {ours} here, {theirs} there"
            )

    def opener(self, order: MoveOrder) -> Device | None:
        return None if order.local.on_device is None else device_of(order.local.on_device)

    def move(self, transfer: RunningTransfer, link: ShmLink, order: MoveOrder) -> bool:
        memory = order.local.on_device
        if memory is None or link.opened is None:
            return super().move(transfer, link, order)
        here, there = memory.address, link.opened.address
        device = device_of(memory)
        pieces = [(here + local, there + remote, size) for local, remote, size in order.pieces]
        if order.op is Op.WRITE:
            pieces = [(theirs, ours, size) for ours, theirs, size in pieces]
        with _stream(device) as stream:
            for batch in _batches(pieces):
                link.check()
                device.copy(stream, batch)
                if not wait(stream.record(), float("inf"), lambda: transfer.over):
                    raise TransferInterrupted
        return False

    def _open_device(self, memory: DeviceMemory) -> Region:
        shared = device_of(memory).share(memory)
        try:
            with self.open_still():
                there = {"socket": self._socket_name}
                descriptor = descriptors.of_memory(self.name, memory, there)
                region = SharedRegion(memory, descriptor, shared, self._owner)
                self._owner.add(region)
        except BaseException:
            _let_go(shared)
            raise
        return region


class SharedRegion(Owned):
    """A device's memory, which peers open."""

    def __init__(
        self,
        memory: DeviceMemory,
        descriptor: Descriptor,
        shared: SharedDeviceMemory,
        owner: ShmOwner,
    ) -> None:
        """`shared` is ours from now on. Raises TransferError, OSError."""
        super().__init__(memory, descriptor)
        self.key = bytes.fromhex(descriptor.epoch)
        self.arrivals = Arrivals()
        self._shared = shared
        self._fd, self._segment = create(0, self.key)
        self._owner = owner
        self._changed = threading.Condition()
        self._peers: set[socket.socket] = set()

    def serve(self, sock: socket.socket) -> bool:
        with self._changed:
            if self._closed:
                return False
            # Under the lock, so that the descriptors stay open.
            fds = [self._fd, *sharing.descriptors(self._shared)]
            length, more = self.descriptor.length, sharing.encode(self._shared)
            wire.send_reply(sock, wire.ShmStatus.SHARED, length, fds, more=more)
            self._peers.add(sock)
        try:
            while (immediate := wire.receive_landed(sock)) is not None:
                self.arrivals.count(immediate)
        finally:
            with self._changed:
                self._peers.discard(sock)
                self._changed.notify_all()
        return True

    def close(self) -> None:
        """Returns when no peer has it open any more, or after CLOSE_SECONDS."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._segment.revoke()
            for sock in self._peers:
                _ask_to_close(sock)
            left = not self._changed.wait_for(lambda: not self._peers, CLOSE_SECONDS)
            if left:
                log.error(
                    "%d peer(s) still have %d bytes of %s open, which must not be freed before they "
                    "end",
                    len(self._peers),
                    self.descriptor.length,
                    self.place,
                )
            os.close(self._fd)
            _let_go(self._shared)
        self._owner.forget(self)
        self.arrivals.fail(StaleDescriptor("the region was closed"))


def _ask_to_close(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_WR)
    except OSError:
        # It has hung up, which is what is asked of it.
        return


def _let_go(shared: SharedDeviceMemory) -> None:
    for fd in sharing.descriptors(shared):
        os.close(fd)


@contextmanager
def _stream(device: Device) -> Iterator[DeviceStream]:
    """A stream for the block, after which nothing of it moves; a block that is well has waited."""
    stream = device.stream()
    try:
        yield stream
    except BaseException:
        quiet(stream)
        raise
    finally:
        stream.close()


def _batches(pieces: Sequence[tuple[int, int, int]]) -> Iterator[list[tuple[int, int, int]]]:
    """At most BATCH_BYTES, but for a piece that is longer, and BATCH_PIECES at a time."""
    batch: list[tuple[int, int, int]] = []
    size = 0
    for piece in pieces:
        if batch and (size + piece[2] > BATCH_BYTES or len(batch) == BATCH_PIECES):
            yield batch
            batch, size = [], 0
        batch.append(piece)
        size += piece[2]
    if batch:
        yield batch
