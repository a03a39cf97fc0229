"""Memory that was allocated elsewhere, as the backends take it: a view, or (address, length).

    backend.register((storage.data_ptr(), storage.nbytes()))    # torch's KV cache
    backend.register(memoryview(array))                         # NumPy's, a bytearray's

It stays the caller's, who keeps it alive and in its place until the region is closed.
"""

import ctypes

Memory = memoryview | tuple[int, int]


def view(memory: Memory) -> memoryview:
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
