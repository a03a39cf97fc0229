"""The owner's side of tcp: regions by epoch, and a thread per connection that serves them."""

import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pdgate.transfer.base import Descriptor, StaleDescriptor
from pdgate.transfer.kit.arrivals import Arrivals
from pdgate.transfer.kit.listener import Listener, shut
from pdgate.transfer.kit.regions import LocalMemory
from pdgate.transfer.kit.sockets import family_of, send_views
from pdgate.transfer.tcp import wire

STALL_SECONDS = 30.0
"""Without a byte in the middle of a request; a peer that is slower has left."""
CLOSE_SECONDS = 5.0


class TcpRegion(LocalMemory):
    """Memory that peers may reach."""

    arrivals: Arrivals

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


class Owner:
    def __init__(self, host: str, port: int, *, checked: bool) -> None:
        """`checked`: whoever does not send checksums is refused. Raises OSError."""
        sock = socket.create_server((host, port), family=family_of(host), backlog=128)
        self.port: int = sock.getsockname()[1]
        self._checked = checked
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
        limit_stalls(sock, STALL_SECONDS)
        checked = self._checked
        try:
            while request := wire.receive_request(sock):
                checked = request.checked
                if self._checked and not checked:
                    raise wire.BadRequest
                self._answer(sock, request)
        except wire.BadRequest:
            sock.sendall(wire.answer(wire.Status.BAD_REQUEST, checked=checked))

    def _answer(self, sock: socket.socket, request: wire.Request) -> None:
        region = self._regions.get(request.epoch)
        if region is None:
            _refuse(sock, request, wire.Status.STALE)
            return
        with region.used_by(sock) as usable:
            if not usable:
                _refuse(sock, request, wire.Status.STALE)
            elif not request.inside(len(region.memory)):
                _refuse(sock, request, wire.Status.OUT_OF_BOUNDS)
            else:
                _move(sock, request, region)


def _refuse(sock: socket.socket, request: wire.Request, status: wire.Status) -> None:
    """The bytes of a write are already on their way, and the next request comes after them."""
    sock.sendall(wire.answer(status, checked=request.checked))
    if request.op is wire.Op.WRITE:
        wire.drop(sock, request)


def _move(sock: socket.socket, request: wire.Request, region: TcpRegion) -> None:
    memory, checked = region.memory, request.checked
    views = [
        memory[offset : offset + length]
        for offset, length in zip(request.offsets, request.lengths, strict=True)
    ]
    if request.op is wire.Op.READ:
        trailer = [wire.checksum(views)] if checked else []
        send_views(sock, [wire.answer(wire.Status.OK, checked=checked), *views, *trailer])
        return
    status = wire.Status.OK
    try:
        wire.receive_bytes(sock, views, checked=checked)
    except wire.Corrupt:
        status = wire.Status.CORRUPT
    # Counted before the answer, so a writer that saw the end may rely on the count.
    if status is wire.Status.OK and request.immediate is not None:
        region.arrivals.count(request.immediate)
    sock.sendall(wire.answer(status, checked=checked))


def limit_stalls(sock: socket.socket, seconds: float) -> None:
    """By the kernel: with Python's own timeout each call would first ask whether it may."""
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
