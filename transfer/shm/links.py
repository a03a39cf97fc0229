"""Segments of peers that we have mapped, each with the connection that shows its owner alive."""

import os
import select
import socket
import threading

from pdgate.transfer.base import PeerLost, StaleDescriptor, TransferError
from pdgate.transfer.runtime.listener import shut
from pdgate.transfer.runtime.running import Interrupted, Running
from pdgate.transfer.shm import wire
from pdgate.transfer.shm.foreign import Foreign
from pdgate.transfer.shm.segment import Segment, stamp_of

CONNECT_SECONDS = 5.0
NOTICE_SECONDS = 5.0


class Link:
    """
    Attributes:
        foreign: Where the memory is, if it is not in the segment.
    """

    def __init__(
        self, sock: socket.socket, segment: Segment, foreign: Foreign | None, epoch: bytes
    ) -> None:
        self._sock = sock
        self.segment = segment
        self.foreign = foreign
        self._stamp = stamp_of(epoch)
        self._lock = threading.Lock()
        self._closed = False
        # The owner says nothing more, so any event is its end. Made once, for two looks a copy.
        self._watch = select.poll()
        self._watch.register(sock, select.POLLIN | select.POLLRDHUP)
        self._room = select.poll()
        self._room.register(sock, select.POLLOUT)

    @property
    def alive(self) -> bool:
        with self._lock:
            return not self._closed and not self._watch.poll(0)

    def has_room(self) -> bool:
        """`landed` would not wait for an owner that does not read."""
        with self._lock:
            return not self._closed and bool(self._room.poll(0))

    def check(self) -> None:
        """The owner lives and the region is open. Raises PeerLost, StaleDescriptor."""
        self.segment.check(self._stamp)
        if not self.alive:
            raise PeerLost("the owner of the memory is gone")

    def landed(self, immediate: int) -> None:
        try:
            wire.send_landed(self._sock, immediate)
        except OSError as error:
            raise PeerLost(f"the owner of the memory is gone: {error}") from None

    def close(self) -> None:
        """The mapping goes when the last transfer lets go of it."""
        with self._lock:
            self._closed = True
            self._sock.close()


class Links:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._links: dict[bytes, Link] = {}
        self._closed = False

    def get(self, name: str, epoch: bytes, length: int, transfer: Running) -> Link:
        """Raises TransferError, Interrupted."""
        with self._lock:
            link = self._links.get(epoch)
        if link is None:
            self._sweep()
            made = _attach(name, epoch, length, transfer)
            with self._lock:
                # Two transfers may have attached at once: the first one's stays.
                link = made if self._closed else self._links.setdefault(epoch, made)
            if link is not made:
                made.close()
        return link

    def known(self, epoch: bytes) -> Link | None:
        """The link to a region that we have met before."""
        return self._links.get(epoch)

    def drop(self, epoch: bytes) -> None:
        """The peer is gone or has closed the region."""
        with self._lock:
            link = self._links.pop(epoch, None)
        if link is not None:
            link.close()

    def _sweep(self) -> None:
        """Lets go of the memory of owners that died: their epochs are not asked for again."""
        with self._lock:
            dead = [epoch for epoch, link in self._links.items() if not link.alive]
        for epoch in dead:
            self.drop(epoch)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            links = list(self._links.values())
            self._links.clear()
        for link in links:
            link.close()


def _attach(name: str, epoch: bytes, length: int, transfer: Running) -> Link:
    sock = wire.new_socket()
    try:
        segment, foreign = _hello(sock, name, epoch, length, transfer)
    except BaseException as error:
        sock.close()
        if transfer.over:
            raise Interrupted from None
        if isinstance(error, OSError):
            raise PeerLost(f"{transfer.what}: {error}") from None
        if isinstance(error, wire.BadMessage):
            raise TransferError(f"{transfer.what}: the peer speaks something else") from None
        raise
    sock.settimeout(NOTICE_SECONDS)
    return Link(sock, segment, foreign, epoch)


def _hello(
    sock: socket.socket, name: str, epoch: bytes, length: int, transfer: Running
) -> tuple[Segment, Foreign | None]:
    sock.settimeout(CONNECT_SECONDS)
    sock.connect(wire.path(name))
    sock.settimeout(None)
    transfer.on_interrupt(lambda: shut(sock))
    wire.send_hello(sock, epoch)
    reply = wire.receive_reply(sock)
    try:
        transfer.on_interrupt(None)
        if reply.status is wire.Status.STALE:
            raise StaleDescriptor(f"{transfer.what}: the owner does not know this epoch")
        if reply.status is not wire.Status.OK or len(reply.fds) != 1 or reply.length != length:
            raise TransferError(f"{transfer.what}: the owner refused")
        if reply.address:
            return Segment(reply.fds[0], 0), Foreign(wire.process(sock), reply.address)
        return Segment(reply.fds[0], length), None
    finally:
        for fd in reply.fds:
            os.close(fd)
