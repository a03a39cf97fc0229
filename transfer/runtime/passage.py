"""Passage of a region's bytes through host memory: as they are, or through pinned buffers.

    with passage.opened(stop) as through:
        for views in through.out(ranges):     send them; they stay until the next
        for views in through.into(ranges):    fill them; all has landed after the last

A backend that moves host memory is the same code for both. What it serves to peers and what it
moves for us have buffers of their own, and a transfer has its buffers before it asks the peer for
anything: so two engines that write to each other cannot wait for each other's.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from pdgate.transfer.base import TransferError
from pdgate.transfer.device.base import Device
from pdgate.transfer.device.opening import open_device
from pdgate.transfer.device.staging import BUFFER_BYTES, Lane, Ranges, Staging, Stop, cut
from pdgate.transfer.memory import DeviceMemory


class Through(ABC):
    @abstractmethod
    def out(self, ranges: Ranges) -> Iterable[Sequence[memoryview]]:
        """Their bytes in order, a batch at a time. Raises Interrupted, DeviceError."""

    @abstractmethod
    def into(self, ranges: Ranges) -> Iterable[Sequence[memoryview]]:
        """Where to put their bytes. Raises Interrupted, DeviceError."""


class Passage(ABC):
    @abstractmethod
    def opened(self, stop: Stop) -> AbstractContextManager[Through]:
        """For one transfer; nothing of it moves after the block. Raises Interrupted, DeviceError."""


class Direct(Passage, Through):
    """Memory of the host."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory

    def opened(self, stop: Stop) -> AbstractContextManager[Through]:
        return nullcontext(self)

    def out(self, ranges: Ranges) -> Iterable[Sequence[memoryview]]:
        return self.at_once(ranges)

    def into(self, ranges: Ranges) -> Iterable[Sequence[memoryview]]:
        return self.at_once(ranges)

    def at_once(self, ranges: Ranges) -> Sequence[Sequence[memoryview]]:
        """The one batch, without a block: there is nothing to take or to give back."""
        memory = self._memory
        return [[memory[offset : offset + length] for offset, length in ranges]]


class Staged(Passage):
    """Memory of a device."""

    def __init__(self, memory: DeviceMemory, staging: Staging) -> None:
        self._memory = memory
        self._staging = staging

    @contextmanager
    def opened(self, stop: Stop) -> Iterator[Through]:
        with self._staging.taken(stop) as lane:
            yield _Lane(self._memory.address, lane)


class _Lane(Through):
    def __init__(self, base: int, lane: Lane) -> None:
        self._base = base
        self._lane = lane

    def out(self, ranges: Ranges) -> Iterator[Sequence[memoryview]]:
        for view in self._lane.out(cut(self._there(ranges), self._lane.buffer_bytes)):
            yield [view]

    def into(self, ranges: Ranges) -> Iterator[Sequence[memoryview]]:
        for view in self._lane.into(cut(self._there(ranges), self._lane.buffer_bytes)):
            yield [view]

    def _there(self, ranges: Ranges) -> Ranges:
        return [(self._base + offset, length) for offset, length in ranges]


class Stagings:
    """A backend's pools: for each device one for what we move, and one for what peers move."""

    def __init__(self, mib: int, buffer_bytes: int = BUFFER_BYTES) -> None:
        """`mib`: pinned memory of a pool, at most. Raises ValueError."""
        self._lanes = mib * (1 << 20) // (2 * buffer_bytes)
        if self._lanes < 1:
            raise ValueError(f"staging takes at least {2 * buffer_bytes >> 20} MiB, not {mib}")
        self._buffer_bytes = buffer_bytes
        self._pools: dict[tuple[str, bool], Staging] = {}

    def of(self, memory: DeviceMemory, *, served: bool) -> Staged:
        """As `pool`."""
        return Staged(memory, self.pool(memory, served=served))

    def pool(self, memory: DeviceMemory, *, served: bool) -> Staging:
        """`served`: for peers. Raises TransferError where there is no such device."""
        pool = self._pools.get((memory.device, served))
        if pool is None:
            pool = Staging(device_of(memory), self._lanes, self._buffer_bytes)
            self._pools[memory.device, served] = pool
        return pool

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()


def device_of(memory: DeviceMemory) -> Device:
    """Raises TransferError."""
    if memory.address <= 0 or memory.length <= 0:
        raise ValueError(f"{memory.length} bytes at {memory.address} are no memory")
    try:
        return open_device(memory.device)
    except LookupError as error:
        raise TransferError(str(error)) from None
