"""Memory that was allocated elsewhere, as the backends take it: a view, (address, length), or a device's.

    backend.register((storage.data_ptr(), storage.nbytes()))    # torch's KV cache on the CPU
    backend.register(memoryview(array))                         # NumPy's, a bytearray's
    backend.register(DeviceMemory("cuda:0", storage.data_ptr(), storage.nbytes()))

It stays the caller's, who keeps it alive and in its place until the region is closed. What lies in
it, strides and dtype, is the layout's to say (plan/).
"""

import ctypes
from dataclasses import dataclass
from typing import Final

HOST: Final = "host"
CUDA: Final = "cuda"
MEMORY: Final = "memory"
"""In the address of a descriptor: where the memory is, if it is not the host's."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes that only a device's copies reach.

    Attributes:
        device: Its name, "cuda:0".
        address: The device's own; to the host it means nothing.
    """

    device: str
    address: int
    length: int


Memory = memoryview | tuple[int, int] | DeviceMemory


def kind(name: str) -> str:
    """What kind of memory it is: "cuda" of "cuda:0", "host" of "host"."""
    return name.partition(":")[0]


def view(memory: memoryview | tuple[int, int]) -> memoryview:
    """As writable bytes. Raises ValueError."""
    if isinstance(memory, memoryview):
        if memory.readonly or not memory.c_contiguous:
            raise ValueError("memory to register must be writable and in one piece")
        return memory.cast("B")
    start, length = memory
    if start <= 0 or length < 0:
        raise ValueError(f"{length} bytes at {start} are no memory")
    return memoryview((ctypes.c_ubyte * length).from_address(start)).cast("B")


def address(memory: memoryview) -> int:
    """Of the first byte of writable bytes."""
    if not memory.nbytes:
        return 0
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(memory))
