"""A device's memory for peers of this host: its owner moves it through windows that both map.

A window is two slots, pinned at both ends, and belongs to one peer's connection. There are a few
of them; a peer that finds none is refused.
"""

import logging
import math
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from pdgate.transfer.base import Descriptor, Grant, Op, StaleDescriptor, TransferError
from pdgate.transfer.device.base import Device, DeviceStream, wait
from pdgate.transfer.device.staging import BUFFER_BYTES
from pdgate.transfer.memory import DeviceMemory
from pdgate.transfer.parts import Part
from pdgate.transfer.runtime.arrivals import Arrivals
from pdgate.transfer.runtime.grants import Entrance, GrantVerdict, PartGrant
from pdgate.transfer.shm import wire
from pdgate.transfer.shm.owner import Owned
from pdgate.transfer.shm.segment import Segment, create

WINDOW: Final = "window"
"""In the address of a region: what a peer asks for to get one."""

_STATUSES: Final = {
    GrantVerdict.FINE: wire.ShmStatus.OK,
    GrantVerdict.STALE: wire.ShmStatus.STALE,
    GrantVerdict.FORBIDDEN: wire.ShmStatus.FORBIDDEN,
}

log = logging.getLogger(__name__)


class Windows:
    """How many there may be, of all regions."""

    def __init__(self, mib: int) -> None:
        """Raises ValueError."""
        count = mib * (1 << 20) // (2 * BUFFER_BYTES)
        if count < 1:
            raise ValueError(f"staging takes at least {2 * BUFFER_BYTES >> 20} MiB, not {mib}")
        self._left = threading.Semaphore(count)

    @contextmanager
    def one_more(self) -> Iterator[bool]:
        """False if there are as many as there may be."""
        got = self._left.acquire(blocking=False)
        try:
            yield got
        finally:
            if got:
                self._left.release()


class WindowRegion(Owned):
    def __init__(
        self,
        memory: DeviceMemory,
        descriptor: Descriptor,
        device: Device,
        windows: Windows,
        forget: Callable[["WindowRegion"], None],
    ) -> None:
        self.key = secrets.token_bytes(16)
        address = {**descriptor.address, WINDOW: self.key.hex()}
        super().__init__(
            memory, Descriptor(descriptor.backend, descriptor.epoch, descriptor.length, address)
        )
        self.arrivals = Arrivals()
        self._base = memory.address
        self._epoch = bytes.fromhex(descriptor.epoch)
        self._device = device
        self._windows = windows
        self._forget = forget
        self._lock = threading.Lock()
        self._entrance = Entrance()
        self._grants: dict[bytes, PartGrant[WindowRegion]] = {}
        self._segments: set[Segment] = set()

    def grant(
        self, peer: str, op: Op, part: Part, seconds: float, immediates: range | None = None
    ) -> Grant:
        """The name of the peer is not proven on a Unix socket: what it was told is its right."""
        grant: PartGrant[WindowRegion] = PartGrant(
            self, peer, op, part, seconds, immediates, self._revoked
        )
        self._grants[bytes.fromhex(grant.descriptor.epoch)] = grant
        return grant

    def serve(self, sock: socket.socket) -> bool:
        with self._windows.one_more() as room:
            if not room:
                log.warning("no staging is left for another peer of %s", self.place)
                wire.send_reply(sock, wire.ShmStatus.NO_ROOM)
                return True
            try:
                return self._serve(sock)
            except TransferError as error:
                raise ConnectionAbortedError(f"{self.place}: {error}") from None

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for segment in self._segments:
                segment.revoke()
        # Returns when no copy of a peer's is under way.
        self._entrance.shut()
        for grant in list(self._grants.values()):
            grant.revoke()
        self._forget(self)
        self.arrivals.fail(StaleDescriptor("the region was closed"))

    def _revoked(self, grant: "PartGrant[WindowRegion]") -> None:
        self._grants.pop(bytes.fromhex(grant.descriptor.epoch), None)

    def _serve(self, sock: socket.socket) -> bool:
        """Raises DeviceError, wire.BadShmMessage, OSError."""
        fd, segment = create(2 * BUFFER_BYTES, self.key)
        try:
            pinned = self._device.pin(segment.memory)
            try:
                stream = self._device.stream()
                try:
                    with self._lock:
                        if self._closed:
                            return False
                        self._segments.add(segment)
                    length = self.descriptor.length
                    wire.send_reply(sock, wire.ShmStatus.STAGED, length, [fd], BUFFER_BYTES)
                    while (move := wire.receive_move(sock)) is not None:
                        wire.send_moved(sock, self._answer(sock, move, segment.memory, stream))
                finally:
                    stream.close()
            finally:
                pinned.close()
        finally:
            os.close(fd)
            with self._lock:
                self._segments.discard(segment)
        return True

    def _answer(
        self, sock: socket.socket, move: wire.SlotMove, slots: memoryview, stream: DeviceStream
    ) -> wire.ShmStatus:
        """Raises wire.BadShmMessage."""
        grant = self._grants.get(move.epoch)
        if grant is None and move.epoch != self._epoch:
            return wire.ShmStatus.STALE
        inside: AbstractContextManager[bool] = nullcontext(True)
        if grant is not None:
            inside = grant.used_by(sock)
        with self._entrance.used_by(sock) as usable, inside as granted:
            if not (usable and granted):
                return wire.ShmStatus.STALE
            ends = map(int.__add__, move.offsets, move.lengths)
            if max(ends, default=0) > self.descriptor.length:
                return wire.ShmStatus.OUT_OF_BOUNDS
            if grant is not None:
                verdict = grant.judge(None, move.op, move.offsets, move.lengths, move.immediate)
                if verdict is not GrantVerdict.FINE:
                    return _STATUSES[verdict]
            return self._move(move, slots, stream)

    def _move(self, move: wire.SlotMove, slots: memoryview, stream: DeviceStream) -> wire.ShmStatus:
        size = sum(move.lengths)
        if size > BUFFER_BYTES:
            raise wire.BadShmMessage
        start = move.slot * BUFFER_BYTES
        slot = slots[start : start + size]
        pieces = [
            (self._base + offset, length)
            for offset, length in zip(move.offsets, move.lengths, strict=True)
        ]
        try:
            if move.op is Op.READ:
                self._device.gather(stream, slot, pieces)
            else:
                self._device.scatter(stream, slot, pieces)
            # What is counted is on the device; and what it reads may be overwritten.
            wait(stream.record(), math.inf, lambda: False)
        except TransferError as error:
            log.warning("%s did not move: %s", self.place, error)
            return wire.ShmStatus.FAILED
        if move.immediate is not None:
            self.arrivals.count(move.immediate)
        return wire.ShmStatus.OK
