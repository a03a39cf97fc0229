"""The contract of a device: memory of its own, and copies that end later than they are asked for.

    stream = device.stream()
    device.gather(stream, buffer.view, [(address, 4096), ...])    returns at once
    event = stream.record()
    wait(event, until, stop)                                      now the bytes are there

Work of one stream happens in its order; between streams there is none. What the
host reads before the event, and what it overwrites before it, is wrong.

Every method may be called from any thread.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from pdgate.transfer.base import TransferError
from pdgate.transfer.memory import DeviceMemory

SPIN_SECONDS: Final = 200e-6
"""A copy of some MiB ends within it, and to sleep takes at least 60 µs."""
SLEEP_SECONDS: Final = 50e-6


class DeviceError(TransferError):
    """A device did not do what was asked of it: it is gone, full, or cannot."""


class DeviceEvent(Protocol):
    """A place in a stream; torch.cuda.Event is one."""

    def query(self) -> bool:
        """Whether all has happened that came before it. Raises if the device is lost."""

    def synchronize(self) -> object:
        """Block until then."""


class DeviceStream(ABC):
    @abstractmethod
    def record(self) -> DeviceEvent:
        """An event behind all that was asked of the stream so far. Raises DeviceError."""

    @abstractmethod
    def close(self) -> None:
        """What was asked happens all the same."""

    def synchronize(self) -> None:
        """Block until all has happened. Raises DeviceError."""
        self.record().synchronize()


class Pinned(ABC):
    """Host memory that the device reads and writes at full speed, in its own time.

    Attributes:
        view: Its bytes.
    """

    view: memoryview

    @abstractmethod
    def close(self) -> None:
        """No copy from or to it is under way any more."""


@dataclass(frozen=True, slots=True)
class SharedAllocation:
    """An allocation as another process of this host may open it.

    Attributes:
        handle: Of the driver; plain bytes.
        fd: What goes beside it over a Unix socket; None if the handle is all.
        length: Of the whole allocation.
    """

    handle: bytes
    fd: int | None
    length: int


@dataclass(frozen=True, slots=True)
class SharedDeviceMemory:
    """Memory as another process may open it: allocations in a row, of which it is a part.

    Attributes:
        offset: Of the memory in the first one.
    """

    parts: tuple[SharedAllocation, ...]
    offset: int


class Opened(ABC):
    """Another process's memory, opened here.

    Attributes:
        address: Ours.
    """

    address: int

    @abstractmethod
    def close(self) -> None:
        """No copy is under way any more. Its owner frees it only after this."""


class Device(ABC):
    """
    Attributes:
        name: "cuda:0".
        description: The hardware and its driver, for tables and logs.
    """

    name: str
    description: str

    @abstractmethod
    def allocate(self, length: int) -> DeviceMemory:
        """Zeroed. Raises DeviceError."""

    @abstractmethod
    def free(self, memory: DeviceMemory) -> None:
        """What was asked of it has happened when this returns."""

    @abstractmethod
    def stream(self) -> DeviceStream:
        """Raises DeviceError."""

    @abstractmethod
    def pinned(self, length: int) -> Pinned:
        """Raises DeviceError."""

    @abstractmethod
    def pin(self, view: memoryview) -> Pinned:
        """Host memory of the caller's, as `pinned` would be, until it is closed. Raises DeviceError."""

    @abstractmethod
    def gather(
        self, stream: DeviceStream, to: memoryview, pieces: Sequence[tuple[int, int]]
    ) -> None:
        """Copy (address, length) after (address, length) into the host's view, which is pinned and as
        long as all of them. Raises DeviceError.
        """

    @abstractmethod
    def scatter(
        self, stream: DeviceStream, source: memoryview, pieces: Sequence[tuple[int, int]]
    ) -> None:
        """The other way round."""

    @abstractmethod
    def copy(self, stream: DeviceStream, pieces: Sequence[tuple[int, int, int]]) -> None:
        """Copy (to, source, length) within the device. Raises DeviceError."""

    @abstractmethod
    def share(self, memory: DeviceMemory) -> SharedDeviceMemory:
        """Its descriptors are the caller's to close. Raises DeviceError if it cannot be shared."""

    @abstractmethod
    def open(self, shared: SharedDeviceMemory) -> Opened:
        """Of another process; the caller keeps the descriptors. Raises DeviceError."""

    def to_host(self, stream: DeviceStream, address: int, view: memoryview) -> None:
        self.gather(stream, view, [(address, view.nbytes)])

    def to_device(self, stream: DeviceStream, address: int, view: memoryview) -> None:
        self.scatter(stream, view, [(address, view.nbytes)])

    def put(self, address: int, data: bytes) -> None:
        """Write, and wait for it. Raises DeviceError."""
        buffer, stream = self.pinned(len(data)), self.stream()
        try:
            buffer.view[:] = data
            self.to_device(stream, address, buffer.view)
            stream.synchronize()
        finally:
            stream.close()
            buffer.close()

    def get(self, address: int, length: int) -> bytes:
        """Read, and wait for it. Raises DeviceError."""
        buffer, stream = self.pinned(length), self.stream()
        try:
            self.to_host(stream, address, buffer.view)
            stream.synchronize()
            return bytes(buffer.view)
        finally:
            stream.close()
            buffer.close()


def wait(event: DeviceEvent, until: float, stop: Callable[[], bool]) -> bool:
    """Whether it has happened by `until` (of time.monotonic()), unless `stop` says to leave.

    Raises DeviceError, whatever the event raises.
    """
    spin_until = time.monotonic() + SPIN_SECONDS
    try:
        while not event.query():
            now = time.monotonic()
            if now > until or stop():
                return False
            if now > spin_until:
                time.sleep(SLEEP_SECONDS)
    except TransferError:
        raise
    # Not only ours: PyTorch's raise RuntimeError for a device that is lost.
    except Exception as error:
        raise DeviceError(f"the device is lost: {error}") from error
    return True
