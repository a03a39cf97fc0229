"""A FakeCore whose pages are a fake device's: what it writes is written late, and what it has is looked at as it is."""

from typing import Any

from pdgate.transfer.base import Region
from pdgate.transfer.device.base import DeviceEvent
from pdgate.transfer.device.fake import FakeDevice, FakeStream
from pdgate.transfer.memory import DeviceMemory
from tests.support.fake_core import FakeCore, content
from tests.transfer.device.nodes import EARLIER_WORK, new_device


class DeviceCore(FakeCore):
    """What it writes is written late, on the stream that computes."""

    device: FakeDevice
    compute: FakeStream
    memories: list[DeviceMemory]

    def open_regions(self) -> list[Region]:
        self.device = new_device(0 if self.role == "prefill" else 1)
        self.compute = self.device.stream()
        size = self.layout.total_bytes
        self.memories = [self.device.allocate(size) for _ in range(self.layout.tp)]
        return [self.backend.register(memory) for memory in self.memories]

    def moment(self) -> DeviceEvent | None:
        return self.compute.record()

    def write(self, blocks: Any, seed: int) -> None:
        for layer in range(self.layout.layers):
            self.launch(layer, blocks, seed)

    def launch(self, layer: int, blocks: Any, seed: int) -> None:
        """One layer's kernels, behind what the stream has to do before."""
        idle = memoryview(bytearray(1))
        last = self.memories[0].address + self.memories[0].length - 1
        for _ in range(EARLIER_WORK):
            self.device.to_host(self.compute, last, idle)
        for index, block in enumerate(blocks):
            parts = content(self.layout, layer, index, seed)
            for memory, part in zip(self.memories, parts, strict=True):
                at = memory.address + self.layout.page_offset(layer, block)
                self.device.to_device(self.compute, at, memoryview(part))

    def page(self, layer: int, block: int) -> bytes:
        """As it is at this moment."""
        start = self.layout.page_offset(layer, block)
        size = self.layout.page_bytes
        return b"".join(self.device.now(one)[start : start + size] for one in self.memories)
