"""The owner's side of tcp: regions by epoch, and a thread per connection that serves them."""

import mmap
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pdgate.transfer import tcp_wire as wire
from pdgate.transfer.arrivals import Arrivals
from pdgate.transfer.base import Descriptor, Region, StaleDescriptor
from pdgate.transfer.listener import Listener, shut
from pdgate.transfer.ranges import inside

STALL_SECONDS = 30.0
CLOSE_SECONDS = 5.0


class TcpMemory(Region):
    """Memory that we may move."""

    def __init__(self, memory: memoryview, descriptor: Descriptor) -> None:
        self.memory = memory
        self.descriptor = descriptor
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True


class TcpRegion(TcpMemory):
    """Memory that peers may reach."""

    def __init__(
        self, memory: memoryview, descriptor: Descriptor, owner: "Owner", fd: int | None = None
    ) -> None:
        """`fd`: of the file that the memory is, if it is one; it is closed with the region."""
        super().__init__(memory, descriptor)
        self._fd = fd
        self.arrivals = Arrivals()
        self._owner = owner
        self._changed = threading.Condition()
        self._users: set[socket.socket] = set()

    def share(self) -> int | None:
        return self._fd

    def close(self) -> None:
        with self._changed:
            if self._closed:
                return
            self._closed = True
            for sock in self._users:
                shut(sock)
            self._changed.wait_for(lambda: not self._users, CLOSE_SECONDS)
        if self._fd is not None:
            os.close(self._fd)
        self._owner.forget(self)
        self.arrivals.fail(StaleDescriptor("the region was closed"))

    @contextmanager
    def used_by(self, sock: socket.socket) -> Iterator[bool]:
        """False if it is closed; `close` breaks off those who are inside and waits for them."""
        with self._changed:
            usable = not self._closed
            if usable:
                self._users.add(sock)
        try:
            yield usable
        finally:
            with self._changed:
                self._users.discard(sock)
                self._changed.notify_all()


def shared_memory(length: int) -> tuple[int, memoryview]:
    """A file without a name, so that a process of ours can map it. Raises OSError, ValueError."""
    fd = os.memfd_create("pdgate-kv", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, length)
        return fd, mapped(fd, length)
    except BaseException:
        os.close(fd)
        raise


def mapped(fd: int, length: int) -> memoryview:
    return memoryview(mmap.mmap(fd, length))


class Owner:
    def __init__(self, host: str, port: int) -> None:
        sock = socket.create_server((host, port), family=family_of(host), backlog=128)
        self.port: int = sock.getsockname()[1]
        self._regions: dict[bytes, TcpRegion] = {}
        self._listener = Listener("pdgate-tcp", sock, self._serve)

    def add(self, region: TcpRegion) -> None:
        self._regions[bytes.fromhex(region.descriptor.epoch)] = region

    def forget(self, region: TcpRegion) -> None:
        self._regions.pop(bytes.fromhex(region.descriptor.epoch), None)

    def close(self) -> None:
        for region in list(self._regions.values()):
            region.close()
        self._listener.close()

    def _serve(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A peer whose host is gone says nothing; without this its thread would stay.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        try:
            while request := wire.receive_request(sock, STALL_SECONDS):
                self._answer(sock, request)
        except wire.BadRequest:
            wire.send_answer(sock, wire.Status.BAD_REQUEST)

    def _answer(self, sock: socket.socket, request: wire.Request) -> None:
        region = self._regions.get(request.epoch)
        if region is None:
            wire.send_answer(sock, wire.Status.STALE)
            return
        with region.used_by(sock) as usable:
            if not usable:
                wire.send_answer(sock, wire.Status.STALE)
            elif not all(inside(o, n, len(region.memory)) for o, n in request.ranges):
                wire.send_answer(sock, wire.Status.OUT_OF_BOUNDS)
            else:
                wire.send_answer(sock, wire.Status.OK)
                self._move(sock, request, region)

    @staticmethod
    def _move(sock: socket.socket, request: wire.Request, region: TcpRegion) -> None:
        views = (region.memory[offset : offset + length] for offset, length in request.ranges)
        if request.op is wire.Op.READ:
            wire.send_views(sock, views)
            return
        wire.receive_views(sock, views)
        # Counted before the answer, so a writer that saw the end may rely on the count.
        if request.immediate is not None:
            region.arrivals.count(request.immediate)
        wire.send_answer(sock, wire.Status.OK)


def family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
