"""Memory that a backend of ours may move."""

from pdgate.transfer.base import Descriptor, Grant, Op, Region
from pdgate.transfer.memory import DeviceMemory
from pdgate.transfer.parts import Part
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

    def grant(
        self, peer: str, op: Op, part: Part, seconds: float, immediates: range | None = None
    ) -> Grant:
        return _CountedGrant(self, immediates)

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True


class _CountedGrant(Grant):
    """All of a region, whose immediates mean nothing to anybody when it is over."""

    def __init__(self, region: LocalMemory, immediates: range | None) -> None:
        self.descriptor = region.descriptor
        self._region = region
        self._immediates = immediates

    def revoke(self) -> None:
        forget(self._region, self._immediates)


def forget(region: LocalMemory, immediates: range | None) -> None:
    """A grant is over: what landed with these and was not expected is nobody's."""
    if region.arrivals is not None and immediates is not None:
        region.arrivals.forget(immediates)
