"""The base of the backends here: how a transfer is asked for, checked and begun.

    read, write  ->  an Order, checked from our side  ->  a Plan of the backend's  ->  Jobs

What was asked and is wrong raises before anything moves.
"""

import threading
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pdgate.transfer import descriptors
from pdgate.transfer.base import (
    Backend,
    Descriptor,
    Op,
    Range,
    Region,
    StaleDescriptor,
    Transfer,
    TransferError,
    place,
)
from pdgate.transfer.memory import MEMORY
from pdgate.transfer.runtime import ranges as lists
from pdgate.transfer.runtime.jobs import TransferJobs, TransferPlan
from pdgate.transfer.runtime.ranges import Piece
from pdgate.transfer.runtime.regions import LocalMemory


@dataclass(frozen=True, slots=True)
class MoveOrder:
    """
    Attributes:
        remote: Of this backend; its address has not been looked at.
        epoch: The remote region's.
        pieces: They lie inside both regions.
        immediate: What a write counts at the end; None for nothing.
    """

    op: Op
    local: LocalMemory
    remote: Descriptor
    epoch: bytes
    pieces: Sequence[Piece]
    bytes: int
    immediate: int | None


class Moving(Backend):
    def __init__(self) -> None:
        self._jobs = TransferJobs(self.name)
        self._lock = threading.Lock()
        self._closed = False

    @abstractmethod
    def plan(self, order: MoveOrder) -> TransferPlan:
        """How the bytes of this order move. Raises TransferError."""

    def read(
        self, local: Region, remote: Descriptor, ranges: Sequence[Range], timeout_seconds: float
    ) -> Transfer:
        return self._start(Op.READ, local, remote, ranges, timeout_seconds, None)

    def write(
        self,
        local: Region,
        remote: Descriptor,
        ranges: Sequence[Range],
        timeout_seconds: float,
        immediate: int | None = None,
    ) -> Transfer:
        descriptors.check_immediate(immediate)
        return self._start(Op.WRITE, local, remote, ranges, timeout_seconds, immediate)

    def expect(self, local: Region, immediate: int, count: int, timeout_seconds: float) -> Transfer:
        descriptors.check_immediate(immediate)
        arrivals = self._ours(local).arrivals
        if arrivals is None:
            raise TypeError("nothing can land in memory that peers cannot reach")
        transfer = self._jobs.expectation(f"expecting {count} x {immediate}", timeout_seconds)
        arrivals.expect(immediate, count, transfer)
        return transfer

    @contextmanager
    def open_still(self) -> Iterator[None]:
        """A block before whose end the backend is not closed. Raises TransferError."""
        with self._lock:
            if self._closed:
                raise TransferError("the backend is closed")
            yield

    def _start(
        self,
        op: Op,
        local: Region,
        remote: Descriptor,
        ranges: Sequence[Range],
        timeout_seconds: float,
        immediate: int | None,
    ) -> Transfer:
        descriptors.check_backend(remote, self.name)
        region = self._ours(local)
        # Host memory on both sides is what every backend here moves.
        if region.on_device is not None or MEMORY in remote.address:
            self.check_pair(region.place, place(remote))
        pieces = lists.pieces(ranges, region.descriptor.length, remote.length)
        epoch = descriptors.epoch_bytes(remote.epoch)
        order = MoveOrder(op, region, remote, epoch, pieces, lists.total(pieces), immediate)
        what = f"{self.name} {op} of {order.bytes} bytes at {descriptors.place(remote)}"
        return self._jobs.start(what, timeout_seconds, self.plan(order))

    def _ours(self, region: Region) -> LocalMemory:
        if not isinstance(region, LocalMemory) or region.descriptor.backend != self.name:
            raise TypeError("the region belongs to another backend")
        if region.closed:
            raise StaleDescriptor("our own region is closed")
        return region
