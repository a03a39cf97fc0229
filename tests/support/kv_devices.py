"""Devices that the tests go through: the fake one, and a GPU where PDGATE_TEST_DEVICE names it.

`bash tools/on_gpu.sh` names it "cuda:0". Its memory is opened by other processes only, so tests with
both sides in one process run on the fake alone.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pdgate.transfer.base import Backend, Region
from pdgate.transfer.device import opening
from pdgate.transfer.device.base import Device
from pdgate.transfer.device.fake import FakeDevice
from pdgate.transfer.memory import DeviceMemory

DEVICE: Final = os.environ.get("PDGATE_TEST_DEVICE", "fake:0")


def replace(device: Device) -> None:
    """From now on this is the device of its name, as a test wants it to behave."""
    opening._open[device.name] = device


@contextmanager
def a_device() -> Iterator[Device]:
    """A new fake one, which is the device of its name for the block; or the GPU."""
    if DEVICE.startswith("fake"):
        replace(FakeDevice(DEVICE))
    yield opening.open_device(DEVICE)


class Buffer:
    """Registered memory of a device, and its bytes as a test sees them."""

    def __init__(self, backend: Backend, device: Device, content: bytes) -> None:
        self._device = device
        self.memory: DeviceMemory = device.allocate(len(content))
        self.fill(content)
        self.region: Region = backend.register(self.memory)

    @property
    def content(self) -> bytes:
        return self._device.get(self.memory.address, self.memory.length)

    def fill(self, content: bytes, at: int = 0) -> None:
        self._device.put(self.memory.address + at, content)
