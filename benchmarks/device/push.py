"""A prompt pushed layer by layer while it is computed, as the messenger does it.

    compute's stream    layer 0 | event | layer 1 | event | ...
    our thread          tells `Later` of each event, and goes on
    Later's thread      waits for the event, then writes the layer's pages

    hidden = 1 - (last layer computed -> all has landed) / the same bytes after prefill

Compute is matrix products of an 8B model's size where PyTorch is, else copies on the device.
"""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.device.owner import SECONDS, Other
from pdgate.transfer.base import Backend, Range, Region, Transfer, TransferError
from pdgate.transfer.device.base import Device, DeviceEvent, wait
from pdgate.transfer.messenger.later import Later

IMMEDIATE = 1
PRODUCTS = 4
"""A layer of 218M parameters for 8,192 tokens takes about 3.6 TFLOP, which are as many of these."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """Seconds, but for the last.

    Attributes:
        alone: Prefill without a push.
        beside: Prefill with it.
        after: All bytes once prefill is over.
        left: From the last layer to the last byte.
        told: Median that the model's thread spent for a layer.
    """

    alone: float
    beside: float
    after: float
    left: float
    told: float

    @property
    def hidden(self) -> float:
        return 1 - self.left / self.after


Layer = Callable[[], DeviceEvent]
"""Asks for a layer's work, and records an event behind it."""


def compute(device: Device, size: int) -> tuple[Layer, str]:
    """And what it is made of."""
    if device.name.startswith("cuda"):
        try:
            return _products(device.name), "bf16 matrix products"
        except ImportError:
            pass
    scratch, stream = device.allocate(2 * size), device.stream()

    def layer() -> DeviceEvent:
        for _ in range(8):
            device.copy(stream, [(scratch.address + size, scratch.address, size)])
        return stream.record()

    return layer, "copies on the device"


def _products(name: str) -> Layer:
    import torch  # type: ignore[import-not-found,unused-ignore]

    there: dict[str, Any] = {"device": name, "dtype": torch.bfloat16}
    x, w = torch.randn(8192, 4096, **there), torch.randn(4096, 14336, **there)

    def layer() -> DeviceEvent:
        for _ in range(PRODUCTS):
            x @ w
        event: DeviceEvent = torch.cuda.Event()
        event.record()  # type: ignore[attr-defined]
        return event

    return layer


def push(
    backend: Backend, local: Region, other: Other, layer: Layer, layers: int, size: int
) -> Pushed:
    """Raises TransferError."""

    def of(number: int) -> list[Range]:
        return [Range(number * size, number * size, size)]

    def prefill() -> float:
        began = time.monotonic()
        for _ in range(layers):
            last = layer()
        _until(last)
        return time.monotonic() - began

    prefill()
    alone = prefill()
    _expected(other, layers)
    began = time.monotonic()
    # As the push does it, but when all is computed.
    for one in [
        backend.write(local, other.descriptor, of(number), SECONDS, IMMEDIATE)
        for number in range(layers)
    ]:
        one.wait(SECONDS)
    after = float(other.hear()) - began

    _expected(other, layers)
    later, told, written = Later("benchmark"), [], []
    began = time.monotonic()

    def pages(number: int) -> Callable[[TransferError | None], None]:
        def work(error: TransferError | None) -> None:
            assert error is None
            there = other.descriptor
            sent: Transfer = backend.write(local, there, of(number), SECONDS, IMMEDIATE)
            written.append(sent)

        return work

    for number in range(layers):
        event = layer()
        asked = time.monotonic()
        later.run(event, pages(number))
        told.append(time.monotonic() - asked)
    _until(event)
    computed = time.monotonic()
    landed = float(other.hear())
    later.close()
    left = max(0.0, landed - computed)
    return Pushed(alone, computed - began, after, left, statistics.median(told))


def _expected(other: Other, count: int) -> None:
    other.say(f"expect {IMMEDIATE} {count}")
    assert other.hear() == "ready"


def _until(event: DeviceEvent) -> None:
    assert wait(event, math.inf, lambda: False)
