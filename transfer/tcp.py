"""KV transfer over TCP, for any two hosts: thread per connection, no copy on our side.

    peer                                owner
      | (offset, length) x n, epoch ---> |  checks epoch and bounds
      | <------ status, then the bytes   |  sendmsg from the pages
      | recv_into the pages              |

Connections are kept and used again; each carries one transfer at a time. The epoch is
128 random bits, so it is also what lets a peer in: whoever has no descriptor cannot read.
Nothing is encrypted: keep the port inside the cluster.
"""

import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import ClassVar

from pdgate.transfer import descriptors
from pdgate.transfer import ranges as lists
from pdgate.transfer import tcp_wire as wire
from pdgate.transfer.base import (
    Backend,
    Descriptor,
    OutOfBounds,
    PeerLost,
    Range,
    Region,
    StaleDescriptor,
    Transfer,
    TransferError,
)
from pdgate.transfer.jobs import Jobs
from pdgate.transfer.listener import shut
from pdgate.transfer.memory import Memory
from pdgate.transfer.memory import view as view_of
from pdgate.transfer.running import Interrupted, Running
from pdgate.transfer.tcp_links import Links
from pdgate.transfer.tcp_owner import Owner, TcpMemory, TcpRegion, mapped, shared_memory

_REFUSALS: dict[wire.Status, Callable[[str], TransferError]] = {
    wire.Status.STALE: StaleDescriptor,
    wire.Status.OUT_OF_BOUNDS: OutOfBounds,
    wire.Status.BAD_REQUEST: TransferError,
}


class Tcp(Backend):
    name: ClassVar = "tcp"

    def __init__(self, host: str = "127.0.0.1", advertise: str = "", *, port: int = 0) -> None:
        """Listens on host:port (0: any); peers dial `advertise`, or `host` if that is empty."""
        self._owner = Owner(host, port)
        self._address = {"host": advertise or host, "port": self._owner.port}
        self._links = Links()
        self._jobs = Jobs(self.name)
        self._lock = threading.Lock()
        self._closed = False

    def allocate(self, length: int) -> Region:
        fd, memory = shared_memory(length)
        return self._open(memory, fd)

    def register(self, memory: Memory) -> Region:
        return self._open(view_of(memory), None)

    def adopt(self, fd: int, length: int) -> Region:
        descriptor = Descriptor(self.name, descriptors.new_epoch(), length, {})
        return TcpMemory(mapped(fd, length), descriptor)

    def read(
        self, local: Region, remote: Descriptor, ranges: Sequence[Range], timeout_seconds: float
    ) -> Transfer:
        return self._start(wire.Op.READ, local, remote, ranges, timeout_seconds, None)

    def write(
        self,
        local: Region,
        remote: Descriptor,
        ranges: Sequence[Range],
        timeout_seconds: float,
        immediate: int | None = None,
    ) -> Transfer:
        descriptors.check_immediate(immediate)
        return self._start(wire.Op.WRITE, local, remote, ranges, timeout_seconds, immediate)

    def expect(self, local: Region, immediate: int, count: int, timeout_seconds: float) -> Transfer:
        descriptors.check_immediate(immediate)
        region = self._ours(local)
        if not isinstance(region, TcpRegion):
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

    def _open(self, memory: memoryview, fd: int | None) -> Region:
        with self._lock:
            if self._closed:
                if fd is not None:
                    os.close(fd)
                raise TransferError("the backend is closed")
            epoch = descriptors.new_epoch()
            descriptor = Descriptor(self.name, epoch, len(memory), self._address)
            region = TcpRegion(memory, descriptor, self._owner, fd)
            self._owner.add(region)
        return region

    def _start(
        self,
        op: wire.Op,
        local: Region,
        remote: Descriptor,
        ranges: Sequence[Range],
        timeout_seconds: float,
        immediate: int | None,
    ) -> Transfer:
        descriptors.check_backend(remote, self.name)
        region = self._ours(local)
        lists.check(ranges, len(region.memory), remote.length)
        address = (descriptors.text(remote.address, "host"), descriptors.port(remote.address))
        merged = lists.merge(ranges)
        if len(merged) > wire.MAX_RANGES:
            raise OutOfBounds(f"{len(merged)} ranges are more than {wire.MAX_RANGES}")
        asked = [(one.remote, one.length) for one in merged]
        request = wire.Request(op, descriptors.epoch_bytes(remote.epoch), asked, immediate)
        views = [region.memory[one.local : one.local + one.length] for one in merged]

        def move(transfer: Running) -> None:
            self._exchange(transfer, address, request, views)

        what = f"{op.name.lower()} of {sum(n for _, n in asked)} bytes at {address[0]}:{address[1]}"
        return self._jobs.start(what, timeout_seconds, move)

    def _exchange(
        self,
        transfer: Running,
        address: tuple[str, int],
        request: wire.Request,
        views: Sequence[memoryview],
    ) -> None:
        try:
            sock = self._links.take(address)
        except OSError as error:
            raise PeerLost(f"{transfer.what}: {error}") from None
        try:
            transfer.on_interrupt(lambda: shut(sock))
            status = _talk(sock, request, views)
            transfer.on_interrupt(None)
        except OSError as error:
            sock.close()
            if transfer.over:
                raise Interrupted from None
            raise PeerLost(f"{transfer.what}: {error}") from None
        except wire.BadRequest:
            sock.close()
            raise TransferError(f"{transfer.what}: the peer speaks something else") from None
        except BaseException:
            sock.close()
            raise
        self._links.give_back(address, sock)
        if status is not wire.Status.OK:
            raise _REFUSALS[status](f"{transfer.what}: {status.name.lower().replace('_', ' ')}")

    @staticmethod
    def _ours(region: Region) -> TcpMemory:
        if not isinstance(region, TcpMemory):
            raise TypeError("the region belongs to another backend")
        if region.closed:
            raise StaleDescriptor("our own region is closed")
        return region


def _talk(sock: socket.socket, request: wire.Request, views: Sequence[memoryview]) -> wire.Status:
    sock.sendall(wire.encode(request))
    status = wire.receive_answer(sock)
    if status is not wire.Status.OK:
        return status
    if request.op is wire.Op.READ:
        wire.receive_views(sock, views)
        return status
    wire.send_views(sock, views)
    return wire.receive_answer(sock)
