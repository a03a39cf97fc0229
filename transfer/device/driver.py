"""NVIDIA's driver as ctypes calls it: names, structures, numbers and errors; nothing is decided here.

It is loaded when the first CUDA device is opened. ctypes lets go of the interpreter's lock for each
call, so a copy or a wait holds no other thread up.

Source: cuda.h of CUDA 13.0 (CUDA_VERSION 13010): names with _v2 are what its macros name.
"""

import ctypes
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_int, c_size_t, c_uint, c_void_p
from typing import Any, Final

from pdgate.transfer.device.base import DeviceError

LIBRARY: Final = "libcuda.so.1"

NOT_READY: Final = 600
STREAM_NON_BLOCKING: Final = 1
EVENT_DISABLE_TIMING: Final = 2
IPC_LAZY_ENABLE_PEER_ACCESS: Final = 1
HOST_PORTABLE: Final = 1
HANDLE_POSIX_FD: Final = 1
ALLOCATION_PINNED: Final = 1
LOCATION_DEVICE: Final = 1
ACCESS_READ_WRITE: Final = 3
SOURCE_ORDER_STREAM: Final = 1

Address = ctypes.c_uint64
"""CUdeviceptr, and CUmemGenericAllocationHandle."""


class IpcHandle(Structure):
    """CUipcMemHandle"""

    _fields_ = (("reserved", c_char * 64),)


class Location(Structure):
    """CUmemLocation"""

    _fields_ = (("type", c_int), ("id", c_int))


class AllocationProperties(Structure):
    """CUmemAllocationProp"""

    _fields_ = (
        ("type", c_int),
        ("requested_handle_types", c_int),
        ("location", Location),
        ("win32_metadata", c_void_p),
        ("flags", ctypes.c_uint8 * 8),
    )


class MemoryAccess(Structure):
    """CUmemAccessDesc"""

    _fields_ = (("location", Location), ("flags", c_int))


class CopyAttributes(Structure):
    """CUmemcpyAttributes"""

    _fields_ = (
        ("source_order", c_int),
        ("source_hint", Location),
        ("destination_hint", Location),
        ("flags", c_uint),
    )


_SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (POINTER(c_void_p),),
    "cuCtxSynchronize": (),
    "cuMemAlloc_v2": (POINTER(Address), c_size_t),
    "cuMemFree_v2": (Address,),
    "cuMemsetD8_v2": (Address, ctypes.c_uint8, c_size_t),
    "cuMemGetAddressRange_v2": (POINTER(Address), POINTER(c_size_t), Address),
    "cuMemHostAlloc": (POINTER(c_void_p), c_size_t, c_uint),
    "cuMemFreeHost": (c_void_p,),
    "cuMemHostRegister_v2": (c_void_p, c_size_t, c_uint),
    "cuMemHostUnregister": (c_void_p,),
    "cuMemcpyAsync": (Address, Address, c_size_t, c_void_p),
    "cuMemcpyBatchAsync_v2": (
        c_void_p,
        c_void_p,
        c_void_p,
        c_size_t,
        POINTER(CopyAttributes),
        POINTER(c_size_t),
        c_size_t,
        c_void_p,
    ),
    "cuStreamCreate": (POINTER(c_void_p), c_uint),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuEventCreate": (POINTER(c_void_p), c_uint),
    "cuEventDestroy_v2": (c_void_p,),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventQuery": (c_void_p,),
    "cuEventSynchronize": (c_void_p,),
    "cuIpcGetMemHandle": (POINTER(IpcHandle), Address),
    "cuIpcOpenMemHandle_v2": (POINTER(Address), IpcHandle, c_uint),
    "cuIpcCloseMemHandle": (Address,),
    "cuMemGetAllocationGranularity": (POINTER(c_size_t), POINTER(AllocationProperties), c_int),
    "cuMemCreate": (POINTER(Address), c_size_t, POINTER(AllocationProperties), ctypes.c_uint64),
    "cuMemRelease": (Address,),
    "cuMemRetainAllocationHandle": (POINTER(Address), c_void_p),
    "cuMemExportToShareableHandle": (c_void_p, Address, c_int, ctypes.c_uint64),
    "cuMemImportFromShareableHandle": (POINTER(Address), c_void_p, c_int),
    "cuMemAddressReserve": (POINTER(Address), c_size_t, c_size_t, Address, ctypes.c_uint64),
    "cuMemAddressFree": (Address, c_size_t),
    "cuMemMap": (Address, c_size_t, c_size_t, Address, ctypes.c_uint64),
    "cuMemUnmap": (Address, c_size_t),
    "cuMemSetAccess": (Address, c_size_t, POINTER(MemoryAccess), c_size_t),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
}

NEWER: Final = frozenset({"cuMemcpyBatchAsync_v2"})
"""What a driver from before CUDA 13 lacks, and is done without."""


class Driver:
    """The functions of the driver, as attributes: `driver.cuInit(0)` raises DeviceError or returns."""

    def __init__(self) -> None:
        """Raises LookupError with one sentence."""
        try:
            library = ctypes.CDLL(LIBRARY)
            self._functions = {
                name: _function(library, name, arguments)
                for name, arguments in _SIGNATURES.items()
                if name not in NEWER or hasattr(library, name)
            }
        except (OSError, AttributeError) as error:
            raise LookupError(
                f"a CUDA device needs NVIDIA's driver of this machine: {error}"
            ) from None
        if code := self._functions["cuInit"](0):
            raise LookupError(f"NVIDIA's driver does not start: {self.name_of(code)}")

    def has(self, name: str) -> bool:
        return name in self._functions

    def code(self, name: str, *arguments: Any) -> int:
        """The result, whatever it is."""
        return int(self._functions[name](*arguments))

    def call(self, name: str, *arguments: Any) -> None:
        """Raises DeviceError."""
        if code := self._functions[name](*arguments):
            raise DeviceError(f"{name}: {self.name_of(code)}")

    def name_of(self, code: int) -> str:
        said = c_char_p()
        if self._functions["cuGetErrorName"](code, byref(said)) or said.value is None:
            return f"error {code}"
        return said.value.decode()


def _function(library: ctypes.CDLL, name: str, arguments: tuple[Any, ...]) -> Any:
    """Raises AttributeError."""
    found = getattr(library, name)
    found.argtypes, found.restype = arguments, c_int
    return found
