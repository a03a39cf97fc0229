"""The owner's side of shm: regions by epoch, handed out as file descriptors."""

import contextlib
import os
import socket
import threading
from abc import abstractmethod
from typing import Final

import numpy as np
import numpy.typing as npt

from pdgate.transfer.base import Descriptor, StaleDescriptor
from pdgate.transfer.memory import address
from pdgate.transfer.runtime.arrivals import Arrivals
from pdgate.transfer.runtime.listener import Listener
from pdgate.transfer.runtime.regions import LocalMemory
from pdgate.transfer.runtime.strangers import Strangers
from pdgate.transfer.shm import wire
from pdgate.transfer.shm.segment import create

HELLO_SECONDS: Final = 5.0
"""A peer says HELLO as soon as it has connected."""


class ShmMemory(LocalMemory):
    """Host memory that we may move."""

    def __init__(self, descriptor: Descriptor, memory: memoryview) -> None:
        super().__init__(memory, descriptor)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(memory, np.uint8)


class Owned(LocalMemory):
    """Memory that peers may reach.

    Attributes:
        key: By which a peer asks for it in HELLO.
        arrivals: Of writes into it.
    """

    key: bytes
    arrivals: Arrivals

    @abstractmethod
    def serve(self, sock: socket.socket) -> bool:
        """One peer, until it leaves. False, and nothing was said, if it is closed.

        Raises wire.BadShmMessage, OSError.
        """


class ShmRegion(ShmMemory, Owned):
    """Host memory that peers may reach: a segment, or another's memory beside an empty segment."""

    def __init__(
        self, descriptor: Descriptor, owner: "ShmOwner", registered: memoryview | None = None
    ) -> None:
        """Raises TransferError, OSError."""
        self.key = bytes.fromhex(descriptor.epoch)
        length = descriptor.length if registered is None else 0
        self._fd, self.segment = create(length, self.key)
        super().__init__(descriptor, self.segment.memory if registered is None else registered)
        self._address = 0 if registered is None else address(registered)
        self.arrivals = Arrivals()
        self._owner = owner
        self._lock = threading.Lock()

    def share(self) -> int | None:
        return None if self._address else self._fd

    def hand_to(self, sock: socket.socket) -> bool:
        """False if it is closed. Under the lock, so that the descriptor stays open."""
        with self._lock:
            if not self._closed:
                length = self.descriptor.length
                wire.send_reply(sock, wire.ShmStatus.OK, length, [self._fd], self._address)
            return not self._closed

    def serve(self, sock: socket.socket) -> bool:
        if not self.hand_to(sock):
            return False
        while (immediate := wire.receive_landed(sock)) is not None:
            self.arrivals.count(immediate)
        return True

    def close(self) -> None:
        """Peers that have it mapped see that the epoch is gone, also in the middle of a read.

        The memory itself is freed when the last view of it is. Registered memory is its
        owner's, and a copy that is under way in another process goes on to its end.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self.segment.revoke()
            os.close(self._fd)
        self._owner.forget(self)
        self.arrivals.fail(StaleDescriptor("the region was closed"))


class ShmOwner:
    def __init__(self, name: str) -> None:
        """Raises OSError if the name is taken by a living process."""
        sock = wire.new_socket()
        try:
            sock.bind(wire.path(name))
            sock.listen(128)
        except BaseException:
            sock.close()
            raise
        self._regions: dict[bytes, Owned] = {}
        self._strangers = Strangers()
        self._listener = Listener("pdgate-shm", sock, self._serve)

    def add(self, region: Owned) -> None:
        self._regions[region.key] = region

    def forget(self, region: Owned) -> None:
        self._regions.pop(region.key, None)

    def close(self) -> None:
        for region in list(self._regions.values()):
            region.close()
        self._listener.close()

    def _serve(self, sock: socket.socket) -> None:
        sock.settimeout(HELLO_SECONDS)
        # The kernel knows the user from the start: a flood of another's must not crowd out ours.
        if not wire.same_user(sock):
            with self._strangers.one_more(sock):
                self._refuse(sock)
            return
        try:
            epoch = wire.receive_hello(sock)
            if epoch is None:
                return
            sock.settimeout(None)
            region = self._regions.get(epoch)
            if region is None or not region.serve(sock):
                wire.send_reply(sock, wire.ShmStatus.STALE)
        except wire.BadShmMessage:
            wire.send_reply(sock, wire.ShmStatus.REFUSED)

    @staticmethod
    def _refuse(sock: socket.socket) -> None:
        # Read first: hanging up on unread bytes would look like a lost owner.
        with contextlib.suppress(wire.BadShmMessage):
            wire.receive_hello(sock)
        wire.send_reply(sock, wire.ShmStatus.REFUSED)
