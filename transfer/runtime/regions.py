"""Memory that a backend of ours may move."""

from pdgate.transfer.base import Descriptor, Region
from pdgate.transfer.memory import DeviceMemory
from pdgate.transfer.runtime.arrivals import Arrivals


class LocalMemory(Region):
    """
    Attributes:
        on_device: What it is where it is a device's; then there is no `memory`.
        arrivals: Of writes into it; None where peers cannot reach it.
    """

    arrivals: Arrivals | None = None

    def __init__(self, memory: memoryview | DeviceMemory, descriptor: Descriptor) -> None:
        self.on_device: DeviceMemory | None = None
        if isinstance(memory, DeviceMemory):
            self.on_device = memory
        else:
            self.memory = memory
        self.descriptor = descriptor
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
