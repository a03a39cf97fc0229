"""Kinds of memory that the same tests go over: the host's, and the fake device's, which a test sees as it is at that moment.

load(**options)    a backend whose `allocate` gives memory of that kind
region.memory      its bytes, to be compared and to be set
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from pdgate.transfer import registry
from pdgate.transfer.base import Backend, Region
from pdgate.transfer.device.fake import FakeDevice
from pdgate.transfer.memory import DeviceMemory
from tests.support.kv_devices import replace

HOST: Final = "host"
FAKE: Final = "fake"

Load = Callable[..., Backend]


class DeviceBytes:
    """Memory of a fake device: nothing happens while it is looked at, so what was not waited for is not there."""

    def __init__(self, device: FakeDevice, memory: DeviceMemory) -> None:
        self._device = device
        self._memory = memory

    def __bytes__(self) -> bytes:
        return self._device.now(self._memory)

    def __len__(self) -> int:
        return self._memory.length

    def __iter__(self) -> Iterator[int]:
        return iter(bytes(self))

    def __eq__(self, other: object) -> bool:
        return bytes(self) == (bytes(other) if isinstance(other, DeviceBytes) else other)

    __hash__ = None  # type: ignore[assignment]

    def __getitem__(self, where: slice) -> bytes:
        return bytes(self)[where]

    def __setitem__(self, where: slice, data: bytes) -> None:
        self._device.put(self._memory.address + (where.start or 0), bytes(data))


def loading(name: str, kind: str) -> Load:
    if kind == HOST:
        return lambda **options: registry.load(name, **options)
    device = FakeDevice()
    replace(device)

    def load(**options: Any) -> Backend:
        backend = registry.load(name, **options)

        def allocate(length: int) -> Region:
            memory = device.allocate(length)
            region = backend.register(memory)
            region.memory = DeviceBytes(device, memory)  # type: ignore[assignment]
            return region

        backend.allocate = allocate  # type: ignore[method-assign]
        return backend

    return load
