"""A device for tests, which does what a GPU may do and the host's memory never does.

    memory       files without a mapping: no address of it can be touched by the host
    copies       happen only when an event is asked for, so what was not waited for is not there
    streams      take turns at random (seeded), so nothing of two of them is in any order
    sharing      by a handle, by a descriptor, or not at all, as an allocation says

Where a wait is missing, stale bytes are read each time and not once in a thousand.
"""

import os
import random
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Literal

from pdgate.transfer.device.base import (
    Device,
    DeviceError,
    DeviceEvent,
    DeviceStream,
    Opened,
    Pinned,
    SharedAllocation,
    SharedDeviceMemory,
)
from pdgate.transfer.memory import DeviceMemory

SEED: Final = 17
FIRST_ADDRESS: Final = 1 << 52
"""Above all that a process has mapped: the host that touches it is killed, as on a GPU."""
ALIGNED: Final = 1 << 21

By = Literal["handle", "fd", "nothing"]

_HANDLE = struct.Struct("<QQQ")


class FakeDevice(Device):
    def __init__(self, name: str = "fake:0", *, seed: int = SEED) -> None:
        self.name = name
        self.description = f"{name}, no hardware"
        self._random = random.Random(seed)
        self._lock = threading.RLock()
        self._allocations: dict[int, _Allocation] = {}
        self._next = FIRST_ADDRESS
        self._streams: list[FakeStream] = []
        self._lost = False

    def allocate(self, length: int, by: By = "handle") -> DeviceMemory:
        """`by`: how it can be shared."""
        if length <= 0:
            raise DeviceError(f"{self.name} cannot allocate {length} bytes")
        fd = os.memfd_create("pdgate-fake-device", os.MFD_CLOEXEC)
        os.ftruncate(fd, length)
        return DeviceMemory(self.name, self._add(fd, length, by), length)

    def free(self, memory: DeviceMemory) -> None:
        with self._lock:
            self._drain()
            os.close(self._allocations.pop(memory.address).fd)

    def stream(self) -> "FakeStream":
        with self._lock:
            self._check()
            stream = FakeStream(self)
            self._streams.append(stream)
            return stream

    def pinned(self, length: int) -> Pinned:
        return _FakePinned(memoryview(bytearray(length)))

    def pin(self, view: memoryview) -> Pinned:
        return _FakePinned(view)

    def gather(
        self, stream: DeviceStream, to: memoryview, pieces: Sequence[tuple[int, int]]
    ) -> None:
        at = 0
        for address, length in pieces:
            part = to[at : at + length]
            self._later(stream, lambda a=address, p=part: self._read(a, p))  # type: ignore[misc]
            at += length

    def scatter(
        self, stream: DeviceStream, source: memoryview, pieces: Sequence[tuple[int, int]]
    ) -> None:
        at = 0
        for address, length in pieces:
            part = source[at : at + length]
            self._later(stream, lambda a=address, p=part: self._write(a, p))  # type: ignore[misc]
            at += length

    def copy(self, stream: DeviceStream, pieces: Sequence[tuple[int, int, int]]) -> None:
        for to, source, length in pieces:
            self._later(stream, lambda t=to, s=source, n=length: self._move(t, s, n))  # type: ignore[misc]

    def share(self, memory: DeviceMemory) -> SharedDeviceMemory:
        with self._lock:
            base, found = self._at(memory.address, memory.length)
        if found.by == "nothing":
            raise DeviceError(f"this allocation of {self.name} cannot be shared with a process")
        fd = os.dup(found.fd) if found.by == "fd" else None
        handle = b"" if fd is not None else _HANDLE.pack(os.getpid(), found.fd, _inode(found.fd))
        return SharedDeviceMemory(
            (SharedAllocation(handle, fd, found.length),), memory.address - base
        )

    def open(self, shared: SharedDeviceMemory) -> Opened:
        (part,) = shared.parts
        fd = os.dup(part.fd) if part.fd is not None else self._by_handle(part.handle)
        if os.fstat(fd).st_size != part.length:
            os.close(fd)
            raise DeviceError(f"the allocation does not have {part.length} bytes")
        return _FakeOpened(self, self._add(fd, part.length, "nothing"), shared.offset)

    def lose(self) -> None:
        """As a GPU that falls off the bus: whatever is asked of it from now on fails."""
        self._lost = True

    def now(self, memory: DeviceMemory) -> bytes:
        """What is in it at this moment; nothing happens meanwhile."""
        with self._lock:
            base, found = self._at(memory.address, memory.length)
            return os.pread(found.fd, memory.length, memory.address - base)

    @property
    def idle(self) -> bool:
        """Whether all that was asked has happened."""
        with self._lock:
            return not any(stream.asked for stream in self._streams)

    @property
    def allocated(self) -> int:
        """Allocations that are open, those of other processes included."""
        return len(self._allocations)

    def forget(self, address: int) -> None:
        with self._lock:
            os.close(self._allocations.pop(address).fd)

    def record(self, stream: "FakeStream") -> "FakeEvent":
        event = FakeEvent(self)
        self._later(stream, event.happen)
        return event

    def step(self, event: "FakeEvent") -> bool:
        """Do one thing that was asked of any stream; whether the event has happened then."""
        with self._lock:
            self._check()
            if not event.happened:
                self._advance()
            return event.happened

    def retire(self, stream: "FakeStream") -> None:
        """What was asked of it happens all the same, when its turn comes."""
        with self._lock:
            stream.closed = True
            if not stream.asked:
                self._streams.remove(stream)

    def _by_handle(self, handle: bytes) -> int:
        pid, number, inode = _HANDLE.unpack(handle)
        try:
            fd = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise DeviceError(f"the allocation cannot be opened: {error}") from None
        if _inode(fd) != inode:
            os.close(fd)
            raise DeviceError("the allocation is gone")
        return fd

    def _add(self, fd: int, length: int, by: By) -> int:
        with self._lock:
            address = self._next
            self._next += -(-length // ALIGNED) * ALIGNED + ALIGNED
            self._allocations[address] = _Allocation(fd, length, by)
            return address

    def _later(self, stream: DeviceStream, work: Callable[[], None]) -> None:
        assert isinstance(stream, FakeStream)
        with self._lock:
            self._check()
            stream.asked.append(work)

    def _check(self) -> None:
        if self._lost:
            raise DeviceError(f"{self.name} is lost")

    def _drain(self) -> None:
        while any(stream.asked for stream in self._streams):
            self._advance()

    def _advance(self) -> None:
        stream = self._random.choice([one for one in self._streams if one.asked])
        work = stream.asked.popleft()
        if stream.closed and not stream.asked:
            self._streams.remove(stream)
        work()

    def _at(self, address: int, length: int) -> tuple[int, "_Allocation"]:
        """The allocation that these bytes lie in, and its address."""
        for base, found in self._allocations.items():
            if base <= address and address + length <= base + found.length:
                return base, found
        raise DeviceError(f"{length} bytes at {address:#x} are no memory of {self.name}")

    def _read(self, address: int, to: memoryview) -> None:
        base, found = self._at(address, to.nbytes)
        os.preadv(found.fd, [to], address - base)

    def _write(self, address: int, source: memoryview) -> None:
        base, found = self._at(address, source.nbytes)
        os.pwritev(found.fd, [source], address - base)

    def _move(self, to: int, source: int, length: int) -> None:
        buffer = memoryview(bytearray(length))
        self._read(source, buffer)
        self._write(to, buffer)


class _Allocation:
    def __init__(self, fd: int, length: int, by: By) -> None:
        self.fd = fd
        self.length = length
        self.by = by


class FakeStream(DeviceStream):
    """
    Attributes:
        asked: What has not happened yet.
    """

    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self.asked: deque[Callable[[], None]] = deque()
        self.closed = False

    def record(self) -> "FakeEvent":
        return self._device.record(self)

    def close(self) -> None:
        self._device.retire(self)


class FakeEvent(DeviceEvent):
    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self.happened = False

    def happen(self) -> None:
        self.happened = True

    def query(self) -> bool:
        return self._device.step(self)

    def synchronize(self) -> None:
        while not self._device.step(self):
            pass


class _FakePinned(Pinned):
    def __init__(self, view: memoryview) -> None:
        self.view = view

    def close(self) -> None:
        return


class _FakeOpened(Opened):
    def __init__(self, device: FakeDevice, base: int, offset: int) -> None:
        self._device = device
        self._base = base
        self.address = base + offset

    def close(self) -> None:
        self._device.forget(self._base)


def _inode(fd: int) -> int:
    return os.fstat(fd).st_ino
