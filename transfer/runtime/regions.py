"""Memory that a backend of ours may move."""

from pdgate.transfer.base import Descriptor, Region
from pdgate.transfer.runtime.arrivals import Arrivals


class LocalMemory(Region):
    """
    Attributes:
        arrivals: Of writes into it; None where peers cannot reach it.
    """

    arrivals: Arrivals | None = None

    def __init__(self, memory: memoryview, descriptor: Descriptor) -> None:
        self.memory = memory
        self.descriptor = descriptor
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
