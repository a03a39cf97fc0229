"""KV transfer over TCP, for any two hosts: threads, and no copy of host memory on our side.

    peer                                     owner
      | epoch, (offset, length) x n    --->    checks epoch and bounds
      | read:  <--- status, then the bytes     sendmsg from the pages
      | write: the bytes ---> status           recv_into the pages

Memory of a device passes through pinned buffers on its side (device/staging.py); the peer does not
notice.

Connections are kept and used again; each carries one transfer at a time. Both ends of one have
proven that they know the fleet's secret (runtime/handshake.py), and the owner checks each request
against what was granted to that very peer: which pages, which way, until when (owner.py).
Requests and answers have a MAC; the bytes of pages have none, and nothing is encrypted.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

from pdgate.transfer import descriptors
from pdgate.transfer.base import Descriptor, OutOfBounds, Region
from pdgate.transfer.device.opening import KINDS
from pdgate.transfer.memory import HOST, DeviceMemory, Memory
from pdgate.transfer.memory import view as view_of
from pdgate.transfer.runtime import memfd
from pdgate.transfer.runtime.fleet import Identity
from pdgate.transfer.runtime.jobs import MAX_THREADS, TransferPlan
from pdgate.transfer.runtime.links import Links
from pdgate.transfer.runtime.moving import MoveOrder, Moving
from pdgate.transfer.runtime.passage import Direct, Passage, Stagings
from pdgate.transfer.runtime.ranges import split
from pdgate.transfer.runtime.regions import LocalMemory
from pdgate.transfer.tcp.owner import PURPOSE, TcpOwner, TcpRegion
from pdgate.transfer.tcp.talk import InUse, Talk, move_together
from pdgate.transfer.tcp.wire import MAX_RANGES

MAX_CONNECTIONS = 16
STRIPE_BYTES = 4 << 20
"""Less than this is not worth another connection."""


class TcpBackend(Moving):
    name: ClassVar = "tcp"
    moves: ClassVar = frozenset({HOST, *KINDS})

    def __init__(
        self,
        host: str = "127.0.0.1",
        advertise: str = "",
        *,
        port: int = 0,
        connections: int = 1,
        crc: bool = False,
        staging_mib: int = 32,
        identity: Identity | None = None,
    ) -> None:
        """Listens on host:port (0: any); peers dial `advertise`, or `host` if that is empty.

        `connections`: a large transfer goes over as many at once. `crc`: all carry checksums.
        Both are for our transfers and, by the descriptors, for those of peers with our memory.
        `staging_mib`: pinned memory for each device and direction, which its bytes pass through.
        Raises ValueError, OSError.
        """
        if not 1 <= connections <= MAX_CONNECTIONS:
            raise ValueError(f"tcp takes 1 to {MAX_CONNECTIONS} connections, not {connections}")
        super().__init__()
        self._stagings = Stagings(staging_mib)
        self._identity = identity or Identity()
        self._owner = TcpOwner(host, port, self._identity, checked=crc)
        self._address = {
            "host": advertise or host,
            "port": self._owner.port,
            "peer": self._identity.name.hex(),
            "connections": connections,
            "crc": crc,
        }
        self._connections, self._crc = connections, crc
        self._links = Links(self._identity, PURPOSE)
        # Apart from the jobs, which wait for them.
        self._helpers = ThreadPoolExecutor(
            MAX_THREADS * (MAX_CONNECTIONS - 1), thread_name_prefix="pdgate-tcp-share"
        )

    def allocate(self, length: int) -> Region:
        fd, memory = memfd.shared(length)
        return self._open(memory, Direct(memory), Direct(memory), fd)

    def register(self, memory: Memory) -> Region:
        if isinstance(memory, DeviceMemory):
            self.check_pair(memory.device, memory.device)
            mine, served = (self._stagings.of(memory, served=one) for one in (False, True))
            return self._open(memory, mine, served, None)
        registered = view_of(memory)
        return self._open(registered, Direct(registered), Direct(registered), None)

    def adopt(self, fd: int, length: int) -> Region:
        descriptor = Descriptor(self.name, descriptors.new_epoch(), length, {})
        return _Adopted(memfd.mapped(fd, length), descriptor)

    def plan(self, order: MoveOrder) -> TransferPlan:
        assert isinstance(order.local, TcpRegion | _Adopted)
        address, pieces = order.remote.address, order.pieces
        if len(pieces) > MAX_RANGES:
            raise OutOfBounds(f"{len(pieces)} ranges are more than {MAX_RANGES}")
        talk = Talk(
            self._links,
            descriptors.owner(address),
            order.op,
            order.epoch,
            order.local.passage,
            self._crc or address.get("crc") is True,
            InUse(),
        )
        theirs = address.get("connections")
        most = self._connections
        if isinstance(theirs, int):
            most = min(max(most, theirs), MAX_CONNECTIONS)
        shares = split(pieces, most, STRIPE_BYTES)
        if len(shares) == 1:
            return TransferPlan(lambda transfer: talk.ask(transfer, pieces, order.immediate))
        return TransferPlan(
            lambda transfer: move_together(transfer, talk, shares, order.immediate, self._helpers)
        )

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._owner.close()
        self._jobs.close()
        self._helpers.shutdown(wait=False)
        self._links.close()
        self._stagings.close()

    def _open(
        self, memory: memoryview | DeviceMemory, ours: Passage, served: Passage, fd: int | None
    ) -> Region:
        try:
            with self.open_still():
                descriptor = descriptors.of_memory(self.name, memory, self._address)
                region = TcpRegion(memory, descriptor, self._owner, (ours, served), fd)
                self._owner.add(descriptor, region)
        except BaseException:
            if fd is not None:
                os.close(fd)
            raise
        return region


class _Adopted(LocalMemory):
    def __init__(self, memory: memoryview, descriptor: Descriptor) -> None:
        super().__init__(memory, descriptor)
        self.passage: Passage = Direct(memory)
