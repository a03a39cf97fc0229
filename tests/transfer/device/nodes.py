"""Engines whose pages are a device's, which computes late, on a stream of its own.

Nothing that was computed is there before its event; nothing that was copied is there when nobody
waited. What a load brought is looked at in `loaded` itself, without anything happening meanwhile.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pdgate.transfer.base import Region
from pdgate.transfer.device.fake import FakeDevice
from pdgate.transfer.memory import DeviceMemory
from pdgate.transfer.messenger.context import Context
from pdgate.transfer.messenger.push_table import Kept
from pdgate.transfer.messenger.source import Source, Target
from pdgate.transfer.plan.layout import KvLayout
from tests.support.kv_devices import replace as replace_device
from tests.support.kv_ranks import Bytes, Cache, cache
from tests.transfer.messenger.nodes import SECONDS, Node

EARLIER_WORK = 100
"""Things that the stream has to do before what is waited for: so it never is there by chance."""


def new_device(number: int) -> FakeDevice:
    device = FakeDevice(f"fake:{number}", seed=number)
    replace_device(device)
    return device


class DeviceNode(Node):
    """
    Attributes:
        compute: The stream of the model.
        memories: Of each rank.
    """

    def __init__(self, backend: str, layout: KvLayout, number: int, **more: Any) -> None:
        self.device = new_device(number)
        self.compute = self.device.stream()
        self._scratch = self.device.allocate(64)
        self._bytes = memoryview(bytearray(64))
        self.memories: list[DeviceMemory] = []
        super().__init__(backend, layout, **more)

    def open_regions(self, sizes: Sequence[int]) -> tuple[list[Region], list[Bytes]]:
        self.memories = [self.device.allocate(size) for size in sizes]
        self.shadows = [np.zeros(size, np.uint8) for size in sizes]
        return [self.backend.register(one) for one in self.memories], self.shadows

    def loaded(self, request_id: str, error: str | None = None) -> None:
        self.look()
        super().loaded(request_id, error)

    def look(self) -> None:
        """What is in the pages at this moment is what `holds` compares."""
        for shadow, memory in zip(self.shadows, self.memories, strict=True):
            shadow[:] = np.frombuffer(self.device.now(memory), np.uint8)

    def expect(self, key: str, tokens: int) -> Cache:
        self.offers.expect(key, key)
        self.pushes.expect(key, key)
        content = cache(self.layout, tokens)
        self.arrays.fill(self.take(key, tokens), content)
        return content

    def computed(self, key: str, tokens: int, layers: Sequence[int] | None = None) -> None:
        """As a model does: the kernels are asked for, an event, and on to the next layer."""
        for layer in range(self.layout.layers) if layers is None else layers:
            self._launch(layer)
            event = self.compute.record()
            self.pushes.computed(key, layer, self.blocks[key], tokens, event)

    def kept(self, key: str, tokens: int, context: Context | None = None) -> None:
        """As an engine does that has not waited for its last step."""
        said = context or Context()
        blocks, event = self.blocks[key], self.compute.record()
        first, data = said.first_token, said.data
        match self.pushes.kept(key, blocks, tokens, first, data, event):
            case Kept.DONE:
                self.release(key)
            case Kept.WAITS:
                assert self.offers.put(key, blocks, tokens, first, data, event)
            case Kept.PUSHING:
                pass

    def kept_at_once(self, key: str, tokens: int, *, offered: bool) -> Cache:
        """All layers in one step of which nobody was told; `offered`: to readers alone."""
        self.offers.expect(key, key)
        if not offered:
            self.pushes.expect(key, key)
        content = cache(self.layout, tokens)
        self.arrays.fill(self.take(key, tokens), content)
        for layer in range(self.layout.layers):
            self._launch(layer)
        if offered:
            event = self.compute.record()
            assert self.offers.put(key, self.blocks[key], tokens, None, b"", event)
        else:
            self.kept(key, tokens)
        return content

    def load_behind(self, key: str, port: int, tokens: int, **source: Any) -> None:
        """Into pages that a step of before still writes to."""
        target = Target(self.take(key, tokens), tokens, 0)
        for memory in self.memories:
            for at in range(0, memory.length - 64, 64):
                self.device.to_device(self.compute, memory.address + at, self._bytes)
        event = self.compute.record()
        said = Source("127.0.0.1", port, key, SECONDS, **source)
        self.loads.start(key, said, target, event)

    def _launch(self, layer: int) -> None:
        """All that is in this layer's pages, behind other work."""
        for _ in range(EARLIER_WORK):
            self.device.to_device(self.compute, self._scratch.address, self._bytes)
        for rank, shadow, memory in zip(
            self.arrays.regions, self.shadows, self.memories, strict=True
        ):
            held = self.layout.layers_of(rank)
            if layer not in held:
                continue
            place = self.arrays.memories[rank]
            start = place.layer_offsets[layer - held.start]
            size = place.blocks * place.block_stride
            data = memoryview(shadow[start : start + size].tobytes())
            self.device.to_device(self.compute, memory.address + start, data)
