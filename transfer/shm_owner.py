"""The owner's side of shm: regions by epoch, handed out as file descriptors."""

import os
import socket
import threading

from pdgate.transfer import shm_wire as wire
from pdgate.transfer.arrivals import Arrivals
from pdgate.transfer.base import Descriptor, Region, StaleDescriptor
from pdgate.transfer.listener import Listener
from pdgate.transfer.shm_segment import Segment, create


class ShmMemory(Region):
    """A segment that we may move."""

    def __init__(self, descriptor: Descriptor, segment: Segment) -> None:
        self.descriptor = descriptor
        self.segment = segment
        self.memory = segment.memory
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True


class ShmRegion(ShmMemory):
    """A segment that peers may map."""

    def __init__(self, descriptor: Descriptor, owner: "Owner") -> None:
        """Raises OSError."""
        self.epoch = bytes.fromhex(descriptor.epoch)
        self._fd, segment = create(descriptor.length, self.epoch)
        super().__init__(descriptor, segment)
        self.arrivals = Arrivals()
        self._owner = owner
        self._lock = threading.Lock()

    def share(self) -> int:
        return self._fd

    def hand_to(self, sock: socket.socket) -> bool:
        """False if it is closed. Under the lock, so that the descriptor stays open."""
        with self._lock:
            if not self._closed:
                wire.send_reply(sock, wire.Status.OK, self.descriptor.length, self._fd)
            return not self._closed

    def close(self) -> None:
        """Peers that have it mapped see that the epoch is gone, also in the middle of a read.

        The memory itself is freed when the last view of it is.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self.segment.revoke()
            os.close(self._fd)
        self._owner.forget(self)
        self.arrivals.fail(StaleDescriptor("the region was closed"))


class Owner:
    def __init__(self, name: str) -> None:
        """Raises OSError if the name is taken by a living process."""
        sock = wire.new_socket()
        try:
            sock.bind(wire.path(name))
            sock.listen(128)
        except BaseException:
            sock.close()
            raise
        self._regions: dict[bytes, ShmRegion] = {}
        self._listener = Listener("pdgate-shm", sock, self._serve)

    def add(self, region: ShmRegion) -> None:
        self._regions[region.epoch] = region

    def forget(self, region: ShmRegion) -> None:
        self._regions.pop(region.epoch, None)

    def close(self) -> None:
        for region in list(self._regions.values()):
            region.close()
        self._listener.close()

    def _serve(self, sock: socket.socket) -> None:
        try:
            # Read first: hanging up on unread bytes would look like a lost owner.
            epoch = wire.receive_hello(sock)
            if epoch is None:
                return
            if not wire.same_user(sock):
                wire.send_reply(sock, wire.Status.REFUSED)
                return
            region = self._regions.get(epoch)
            if region is None or not region.hand_to(sock):
                wire.send_reply(sock, wire.Status.STALE)
                return
            while (immediate := wire.receive_landed(sock)) is not None:
                region.arrivals.count(immediate)
        except wire.BadMessage:
            wire.send_reply(sock, wire.Status.REFUSED)
