"""An NVIDIA GPU as a Device, by the driver alone.

It works in the device's primary context, which PyTorch uses too, so tensors' addresses and events
are good here. Each call makes it the thread's own and puts back what was there before.

    allocations    of cuMemAlloc, which PyTorch's caching allocator hands out offsets of: cuIpc handles
                   of cuMemCreate (expandable segments, vLLM's cumem): a descriptor for each piece
    pieces         cuMemcpyBatchAsync, where the driver has it (CUDA 13), else a copy for each

Not run on a GPU yet; `bash tools/on_gpu.sh` would.

Source: CUDA 13.0, cuda.h: cuIpcGetMemHandle, cuMemRetainAllocationHandle,
cuMemExportToShareableHandle, cuMemImportFromShareableHandle, cuMemcpyBatchAsync.
"""

import ctypes
import os
import threading
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import byref, c_int, c_size_t, c_void_p
from itertools import chain
from typing import Any, Final, Literal

import numpy as np

from pdgate.transfer import memory as memories
from pdgate.transfer.device import driver as cu
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
from pdgate.transfer.device.driver import Address, Driver
from pdgate.transfer.memory import DeviceMemory

MAX_PARTS: Final = 128
"""Descriptors that go beside one message (SCM_MAX_FD is 253)."""

By = Literal["handle", "fd", "nothing"]


class CudaDevice(Device):
    def __init__(self, number: int) -> None:
        """Raises LookupError with one sentence: no driver, no such GPU."""
        self.name = f"cuda:{number}"
        self.driver = Driver()
        self._number = c_int()
        self._context = c_void_p()
        said, version = ctypes.create_string_buffer(128), c_int()
        try:
            self.driver.call("cuDeviceGet", byref(self._number), number)
            self.driver.call("cuDeviceGetName", said, len(said), self._number)
            self.driver.call("cuDriverGetVersion", byref(version))
            self.driver.call("cuDevicePrimaryCtxRetain", byref(self._context), self._number)
        except DeviceError as error:
            raise LookupError(f"no {self.name} here: {error}") from None
        major, rest = divmod(version.value, 1000)
        self.description = f"{said.value.decode()}, driver for CUDA {major}.{rest // 10}"
        self._lock = threading.Lock()
        self._mapped: dict[int, int] = {}

    @contextmanager
    def current(self) -> Iterator[Driver]:
        """A block of calls in our context."""
        self.driver.call("cuCtxPushCurrent_v2", self._context)
        try:
            yield self.driver
        finally:
            self.driver.call("cuCtxPopCurrent_v2", byref(c_void_p()))

    def allocate(self, length: int, by: By = "handle") -> DeviceMemory:
        """`by`: how it can be shared."""
        with self.current() as driver:
            at = Address()
            if by == "handle":
                driver.call("cuMemAlloc_v2", byref(at), length)
            else:
                at = self._map(length, cu.HANDLE_POSIX_FD if by == "fd" else 0)
            driver.call("cuMemsetD8_v2", at, 0, length)
            driver.call("cuCtxSynchronize")
        return DeviceMemory(self.name, at.value, length)

    def free(self, memory: DeviceMemory) -> None:
        with self.current() as driver:
            driver.call("cuCtxSynchronize")
            with self._lock:
                mapped = self._mapped.pop(memory.address, None)
            if mapped is None:
                driver.call("cuMemFree_v2", memory.address)
            else:
                driver.call("cuMemUnmap", memory.address, mapped)
                driver.call("cuMemAddressFree", memory.address, mapped)

    def stream(self) -> "CudaStream":
        return CudaStream(self)

    def pinned(self, length: int) -> Pinned:
        at = c_void_p()
        with self.current() as driver:
            driver.call("cuMemHostAlloc", byref(at), max(1, length), cu.HOST_PORTABLE)
        assert at.value is not None
        view = memories.view((at.value, length))
        return _CudaPinned(self, view, at.value, "cuMemFreeHost")

    def pin(self, view: memoryview) -> Pinned:
        at = memories.address(view)
        with self.current() as driver:
            driver.call("cuMemHostRegister_v2", at, view.nbytes, cu.HOST_PORTABLE)
        return _CudaPinned(self, view, at, "cuMemHostUnregister")

    def gather(
        self, stream: DeviceStream, to: memoryview, pieces: Sequence[tuple[int, int]]
    ) -> None:
        at = memories.address(to)
        listed = []
        for address, length in pieces:
            listed.append((at, address, length))
            at += length
        self.copy(stream, listed)

    def scatter(
        self, stream: DeviceStream, source: memoryview, pieces: Sequence[tuple[int, int]]
    ) -> None:
        at = memories.address(source)
        listed = []
        for address, length in pieces:
            listed.append((address, at, length))
            at += length
        self.copy(stream, listed)

    def copy(self, stream: DeviceStream, pieces: Sequence[tuple[int, int, int]]) -> None:
        """Host addresses too: with unified addressing the driver knows which is which."""
        assert isinstance(stream, CudaStream)
        pieces = [piece for piece in pieces if piece[2]]
        with self.current() as driver:
            if len(pieces) > 1 and driver.has("cuMemcpyBatchAsync_v2"):
                _batch(driver, pieces, stream.raw)
                return
            for to, source, length in pieces:
                driver.call("cuMemcpyAsync", to, source, length, stream.raw)

    def share(self, memory: DeviceMemory) -> SharedDeviceMemory:
        parts: list[SharedAllocation] = []
        at, end, offset = memory.address, memory.address + memory.length, 0
        try:
            with self.current() as driver:
                while at < end:
                    base, size = Address(), c_size_t()
                    driver.call("cuMemGetAddressRange_v2", byref(base), byref(size), at)
                    if not parts:
                        offset = at - base.value
                    parts.append(self._share(driver, base.value, size.value))
                    at = base.value + size.value
            if len(parts) > MAX_PARTS:
                raise DeviceError(f"{len(parts)} allocations in a row cannot be shared at once")
        except BaseException:
            for part in parts:
                if part.fd is not None:
                    os.close(part.fd)
            raise
        return SharedDeviceMemory(tuple(parts), offset)

    def open(self, shared: SharedDeviceMemory) -> Opened:
        with self.current() as driver:
            if shared.parts[0].fd is None:
                if len(shared.parts) > 1:
                    raise DeviceError("allocations in a row can be opened by descriptors only")
                at = Address()
                handle = cu.IpcHandle.from_buffer_copy(shared.parts[0].handle)
                flags = cu.IPC_LAZY_ENABLE_PEER_ACCESS
                driver.call("cuIpcOpenMemHandle_v2", byref(at), handle, flags)
                return _CudaOpened(self, at.value, 0, shared.offset)
            fds = [part.fd for part in shared.parts]
            lengths = [part.length for part in shared.parts]
            total = sum(lengths)
            return _CudaOpened(
                self, self._map_all(driver, fds, lengths, total), total, shared.offset
            )

    def _share(self, driver: Driver, base: int, size: int) -> SharedAllocation:
        handle = Address()
        if driver.code("cuMemRetainAllocationHandle", byref(handle), base):
            # Not of cuMemCreate, so of cuMemAlloc.
            legacy = cu.IpcHandle()
            driver.call("cuIpcGetMemHandle", byref(legacy), base)
            return SharedAllocation(bytes(legacy), None, size)
        fd = c_int()
        kind = cu.HANDLE_POSIX_FD
        try:
            code = driver.code("cuMemExportToShareableHandle", byref(fd), handle, kind, 0)
        finally:
            driver.call("cuMemRelease", handle)
        if code:
            raise DeviceError(
                f"this allocation of {self.name} was made without a descriptor to share it by "
                f"({driver.name_of(code)})"
            )
        return SharedAllocation(b"", fd.value, size)

    def _map(self, length: int, handle_types: int) -> Any:
        """New memory of the other kind."""
        driver = self.driver
        wanted = cu.AllocationProperties(
            cu.ALLOCATION_PINNED, handle_types, cu.Location(cu.LOCATION_DEVICE, self._number.value)
        )
        unit = c_size_t()
        driver.call("cuMemGetAllocationGranularity", byref(unit), byref(wanted), 0)
        size = -(-length // unit.value) * unit.value
        at, handle = Address(), Address()
        driver.call("cuMemAddressReserve", byref(at), size, 0, 0, 0)
        driver.call("cuMemCreate", byref(handle), size, byref(wanted), 0)
        driver.call("cuMemMap", at, size, 0, handle, 0)
        driver.call("cuMemRelease", handle)
        self._allow(driver, at.value, size)
        with self._lock:
            self._mapped[at.value] = size
        return at

    def _map_all(
        self, driver: Driver, fds: Sequence[int | None], lengths: Sequence[int], total: int
    ) -> int:
        """Allocations of another process, in a row."""
        at = Address()
        driver.call("cuMemAddressReserve", byref(at), total, 0, 0, 0)
        mapped = 0
        try:
            for fd, length in zip(fds, lengths, strict=True):
                handle = Address()
                # The descriptor itself, in the place of a pointer.
                driver.call("cuMemImportFromShareableHandle", byref(handle), fd, cu.HANDLE_POSIX_FD)
                try:
                    driver.call("cuMemMap", at.value + mapped, length, 0, handle, 0)
                finally:
                    driver.call("cuMemRelease", handle)
                mapped += length
            self._allow(driver, at.value, total)
        except BaseException:
            if mapped:
                driver.call("cuMemUnmap", at, mapped)
            driver.call("cuMemAddressFree", at, total)
            raise
        return at.value

    def _allow(self, driver: Driver, at: int, size: int) -> None:
        location = cu.Location(cu.LOCATION_DEVICE, self._number.value)
        access = cu.MemoryAccess(location, cu.ACCESS_READ_WRITE)
        driver.call("cuMemSetAccess", at, size, byref(access), 1)


class CudaStream(DeviceStream):
    """Attributes:
    raw: CUstream.
    """

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self.raw = c_void_p()
        with device.current() as driver:
            driver.call("cuStreamCreate", byref(self.raw), cu.STREAM_NON_BLOCKING)

    def record(self) -> "CudaEvent":
        return CudaEvent(self._device, self)

    def close(self) -> None:
        with self._device.current() as driver:
            driver.call("cuStreamDestroy_v2", self.raw)


class CudaEvent(DeviceEvent):
    """Attributes:
    raw: CUevent.
    """

    def __init__(self, device: CudaDevice, stream: CudaStream) -> None:
        self._device = device
        self.raw = c_void_p()
        with device.current() as driver:
            driver.call("cuEventCreate", byref(self.raw), cu.EVENT_DISABLE_TIMING)
            driver.call("cuEventRecord", self.raw, stream.raw)

    def query(self) -> bool:
        code = self._device.driver.code("cuEventQuery", self.raw)
        if code not in (0, cu.NOT_READY):
            raise DeviceError(f"{self._device.name} is lost: {self._device.driver.name_of(code)}")
        return code == 0

    def synchronize(self) -> None:
        self._device.driver.call("cuEventSynchronize", self.raw)

    def __del__(self) -> None:
        # What the driver answers is of no use here: the event is gone either way.
        if self.raw:
            self._device.driver.code("cuEventDestroy_v2", self.raw)


class _CudaPinned(Pinned):
    def __init__(self, device: CudaDevice, view: memoryview, at: int, free: str) -> None:
        self.view = view
        self._device = device
        self._at = at
        self._free = free

    def close(self) -> None:
        with self._device.current() as driver:
            driver.call(self._free, self._at)


class _CudaOpened(Opened):
    def __init__(self, device: CudaDevice, base: int, mapped: int, offset: int) -> None:
        """`mapped`: bytes that are mapped there; 0 where a handle was opened."""
        self._device = device
        self._base = base
        self._mapped = mapped
        self.address = base + offset

    def close(self) -> None:
        with self._device.current() as driver:
            if not self._mapped:
                driver.call("cuIpcCloseMemHandle", self._base)
                return
            driver.call("cuMemUnmap", self._base, self._mapped)
            driver.call("cuMemAddressFree", self._base, self._mapped)


def _batch(driver: Driver, pieces: Sequence[tuple[int, int, int]], stream: Any) -> None:
    # As one buffer and then by column: four times as fast as three arrays of ctypes (measured).
    flat = np.frombuffer(array("Q", chain.from_iterable(pieces)), np.uint64)
    columns = flat.reshape(-1, 3).T.copy()
    to, source, lengths = (column.ctypes.data for column in columns)
    attributes = cu.CopyAttributes(source_order=cu.SOURCE_ORDER_STREAM)
    driver.call(
        "cuMemcpyBatchAsync_v2",
        to,
        source,
        lengths,
        len(pieces),
        byref(attributes),
        (c_size_t * 1)(0),
        1,
        stream,
    )
