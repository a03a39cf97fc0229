"""Segments of peers that we have mapped, each with the connection that shows its owner alive."""

import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pdgate.transfer.base import PeerLost, StaleDescriptor, TransferError
from pdgate.transfer.device import sharing
from pdgate.transfer.device.base import Device, Opened
from pdgate.transfer.runtime.listener import shut
from pdgate.transfer.runtime.running import RunningTransfer, TransferInterrupted
from pdgate.transfer.shm import wire
from pdgate.transfer.shm.foreign import Foreign
from pdgate.transfer.shm.segment import Segment, stamp_of
from pdgate.transfer.shm.staged import StagedWindow

CONNECT_SECONDS = 5.0
NOTICE_SECONDS = 5.0
WATCH_MILLISECONDS = 500
LOOK_SECONDS = 0.05


class ShmLink:
    """
    Attributes:
        key: What it was asked for by.
        foreign: Where the memory is, if it is not in the segment.
        window: What it is moved through, if it is a device's.
        opened: A device's that we reach ourselves.
    """

    def __init__(
        self,
        sock: socket.socket,
        key: bytes,
        segment: Segment,
        *,
        foreign: Foreign | None = None,
        window: StagedWindow | None = None,
        opened: Opened | None = None,
    ) -> None:
        self._sock = sock
        self.key = key
        self.segment = segment
        self.foreign = foreign
        self.window = window
        self.opened = opened
        self._stamp = stamp_of(key)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._users = 0
        self._closed = False
        # An owner without a window says nothing more, so any event is its end. Made once, for two
        # looks a copy.
        self._watch = select.poll()
        said = 0 if window is not None else select.POLLIN
        self._watch.register(sock, said | select.POLLRDHUP)
        self._room = select.poll()
        self._room.register(sock, select.POLLOUT)

    @property
    def alive(self) -> bool:
        with self._lock:
            return not self._closed and not self._watch.poll(0)

    @property
    def good(self) -> bool:
        """Whether it may serve another transfer."""
        if self.window is not None and self.window.broken:
            return False
        try:
            self.check()
        except TransferError:
            return False
        return True

    @contextmanager
    def used(self) -> Iterator[None]:
        """A block in which what was opened stays open. Raises PeerLost."""
        with self._changed:
            if self._closed:
                raise PeerLost("the owner of the memory is gone")
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

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
        """A mapping of host memory goes when the last transfer lets go of it. What was opened of a
        device is closed when the last copy has ended, and only then its owner hears of it.
        """
        with self._changed:
            if self._closed:
                return
            self._closed = True
            if self.opened is not None:
                self._changed.wait_for(lambda: not self._users)
        if self.opened is not None:
            self.opened.close()
        if self.window is not None:
            shut(self._sock)
            self.window.close()
        self._sock.close()

    def watch(self, drop: Callable[["ShmLink"], None]) -> None:
        """Close it at once when its owner asks for that, by hanging up."""

        def until_the_end() -> None:
            ends = select.poll()
            ends.register(self._sock, select.POLLIN | select.POLLRDHUP)
            # A link that we close ourselves is shut for no peer: the thread ends at its next look.
            while not self._closed:
                if ends.poll(WATCH_MILLISECONDS):
                    drop(self)
                    return

        threading.Thread(target=until_the_end, name="pdgate-shared-link", daemon=True).start()


class ShmLinks:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._attaching: set[bytes] = set()
        self._links: dict[bytes, ShmLink] = {}
        self._closed = False

    def get(
        self,
        name: str,
        key: bytes,
        length: int,
        transfer: RunningTransfer,
        opener: Device | None = None,
    ) -> ShmLink:
        """`opener`: of a peer's allocations. Raises TransferError, TransferInterrupted."""
        with self._changed:
            # One at a time: what comes with a link, a window or an opened allocation, is dear.
            while key in self._attaching:
                self._changed.wait(LOOK_SECONDS)
                if transfer.over:
                    raise TransferInterrupted
            if (link := self._links.get(key)) is not None:
                return link
            self._attaching.add(key)
        try:
            self._sweep()
            link = _attach(name, key, length, transfer, opener)
            with self._changed:
                closed = self._closed
                if not closed:
                    self._links[key] = link
        finally:
            with self._changed:
                self._attaching.discard(key)
                self._changed.notify_all()
        if closed:
            link.close()
        elif link.opened is not None:
            link.watch(self.drop)
        return link

    def known(self, key: bytes) -> ShmLink | None:
        """The link to a region that we have met before."""
        return self._links.get(key)

    def drop(self, link: ShmLink) -> None:
        """The peer is gone or has closed the region."""
        with self._lock:
            if self._links.get(link.key) is link:
                del self._links[link.key]
        link.close()

    def _sweep(self) -> None:
        """Lets go of the memory of owners that died: their epochs are not asked for again."""
        with self._lock:
            dead = [link for link in self._links.values() if not link.alive]
        for link in dead:
            self.drop(link)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            links = list(self._links.values())
            self._links.clear()
        for link in links:
            link.close()


def _attach(
    name: str, key: bytes, length: int, transfer: RunningTransfer, opener: Device | None
) -> ShmLink:
    sock = wire.new_socket()
    try:
        link = _hello(sock, name, key, length, transfer, opener)
    except BaseException as error:
        sock.close()
        if transfer.over:
            raise TransferInterrupted from None
        if isinstance(error, OSError):
            raise PeerLost(f"{transfer.what}: {error}") from None
        if isinstance(error, wire.BadShmMessage):
            raise TransferError(f"{transfer.what}: the peer speaks something else") from None
        raise
    # A window's owner may take as long as the transfer may.
    sock.settimeout(None if link.window is not None else NOTICE_SECONDS)
    return link


def _hello(
    sock: socket.socket,
    name: str,
    key: bytes,
    length: int,
    transfer: RunningTransfer,
    opener: Device | None,
) -> ShmLink:
    sock.settimeout(CONNECT_SECONDS)
    sock.connect(wire.path(name))
    sock.settimeout(None)
    transfer.on_interrupt(lambda: shut(sock))
    wire.send_hello(sock, key)
    reply = wire.receive_reply(sock)
    try:
        transfer.on_interrupt(None)
        return _link(sock, key, length, transfer.what, reply, opener)
    finally:
        for fd in reply.fds:
            os.close(fd)


def _link(
    sock: socket.socket,
    key: bytes,
    length: int,
    what: str,
    reply: wire.Reply,
    opener: Device | None,
) -> ShmLink:
    """Raises TransferError, OSError."""
    if reply.status is wire.ShmStatus.STALE:
        raise StaleDescriptor(f"{what}: the owner does not know this epoch")
    if reply.status is wire.ShmStatus.NO_ROOM:
        raise TransferError(f"{what}: the owner has no staging left for another peer")
    if not reply.fds or reply.length != length:
        raise TransferError(f"{what}: the owner refused")
    match reply.status:
        case wire.ShmStatus.OK if reply.address:
            foreign = Foreign(wire.process(sock), reply.address)
            return ShmLink(sock, key, Segment(reply.fds[0], 0), foreign=foreign)
        case wire.ShmStatus.OK:
            return ShmLink(sock, key, Segment(reply.fds[0], length))
        case wire.ShmStatus.STAGED:
            segment = Segment(reply.fds[0], 2 * reply.address)
            return ShmLink(sock, key, segment, window=StagedWindow(sock, segment, reply.address))
        case wire.ShmStatus.SHARED if opener is not None:
            segment = Segment(reply.fds[0], 0)
            opened = opener.open(sharing.decode(reply.more, reply.fds[1:], length))
            return ShmLink(sock, key, segment, opened=opened)
    raise TransferError(f"{what}: the owner refused")
