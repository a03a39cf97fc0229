"""PyTorch on one device: where the model computes with tensors, and where its pages lie then.

    cpu        pages are the memory that a transfer backend allocates, and the tensors are over it
    cuda:N     pages are allocated by PyTorch and registered as the device's; events say when they are written

A CUDA device has not been run on yet (docs/device-memory.md). All of the model's work is on one stream, that which is current
on the core's thread.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pdgate.engine.cache.memory import KvMemory
from pdgate.engine.layout import Layout
from pdgate.engine.model.attentions import Put
from pdgate.engine.model.weights import Floats
from pdgate.protocols.extras import install
from pdgate.transfer.base import Backend, Region, TransferError
from pdgate.transfer.device.base import DeviceEvent
from pdgate.transfer.memory import CUDA, DeviceMemory, kind

NO_TORCH = f"--device computes with PyTorch, which is not installed here: {install('torch')}"


class Tensors:
    """
    Attributes:
        device: "cpu" or "cuda:N"; "cuda" is the first one.
    """

    def __init__(self, device: str, threads: int = 1) -> None:
        """Raises LookupError with one sentence: no PyTorch, no such device."""
        try:
            import torch
        except ImportError as error:
            raise LookupError(f"{NO_TORCH} ({error})") from None
        self._torch: Any = torch
        torch.set_num_threads(threads)
        self.device = f"{CUDA}:0" if device == CUDA else device
        try:
            self._device = torch.device(self.device)
            torch.zeros(1, device=self._device)
        # What it raises depends on what is missing: a driver, the device, its own support of CUDA.
        except (RuntimeError, AssertionError) as error:
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise LookupError(f"PyTorch has no {self.device} here: {first}") from None

    @property
    def on_host(self) -> bool:
        return kind(self.device) != CUDA

    def put(self, array: Floats) -> Floats:
        # A copy on the CPU as well: weights may be read-only views of a file.
        found: Floats = self._torch.tensor(array, device=self._device)
        return found

    def bytes_over(self, memory: memoryview) -> Any:
        """A tensor of the host's own bytes."""
        return self._torch.frombuffer(memory, dtype=self._torch.uint8)

    def new_bytes(self, length: int) -> Any:
        """Zeroed, and there when this returns. Raises MemoryError."""
        try:
            made = self._torch.zeros(length, dtype=self._torch.uint8, device=self._device)
        except RuntimeError as error:
            raise MemoryError(f"{self.device} has no room for {length} bytes of KV") from error
        if not self.on_host:
            self._torch.cuda.synchronize(self._device)
        return made

    def memory(self, made: Any) -> DeviceMemory:
        """Memory as transfer backends register it."""
        return DeviceMemory(self.device, made.data_ptr(), made.numel())

    def moment(self) -> DeviceEvent | None:
        """An event behind all that the model has asked for so far; None where that has happened."""
        if self.on_host:
            return None
        event: DeviceEvent = self._torch.cuda.Event()
        event.record(self._torch.cuda.current_stream(self._device))  # type: ignore[attr-defined]
        return event


@dataclass(frozen=True, slots=True)
class KvPlaces:
    """Pages that peers reach.

    Attributes:
        regions: One for each shard.
        memory: The same, as the model uses them.
        moment: As `Tensors.moment`.
    """

    regions: Sequence[Region]
    memory: KvMemory
    moment: Callable[[], DeviceEvent | None]


def open_tensors(device: str, threads: int) -> Tensors | None:
    """Open the tensors of a device; None without one: NumPy computes. Raise LookupError."""
    return Tensors(device, threads) if device else None


def putting(tensors: Tensors | None) -> Put:
    return (lambda array: array) if tensors is None else tensors.put


def own_pages(layout: Layout, tensors: Tensors | None) -> KvMemory:
    """Pages that no peer reaches."""
    if tensors is not None:
        return KvMemory(layout, [tensors.new_bytes(layout.total_bytes) for _ in range(layout.tp)])
    return KvMemory(layout, [memoryview(bytearray(layout.total_bytes)) for _ in range(layout.tp)])


def registered(layout: Layout, backend: Backend, tensors: Tensors | None) -> KvPlaces:
    """Raises ValueError, OSError."""
    if tensors is not None and not tensors.on_host:
        shards = [tensors.new_bytes(layout.total_bytes) for _ in range(layout.tp)]
        try:
            regions = [backend.register(tensors.memory(shard)) for shard in shards]
        except TransferError as error:
            raise ValueError(
                f"the KV cache on {tensors.device} cannot be reached: {error}"
            ) from error
        return KvPlaces(regions, KvMemory(layout, shards), tensors.moment)
    # Of the backend, not of PyTorch: another process can map what it allocates, so that movers can move it.
    regions = [backend.allocate(layout.total_bytes) for _ in range(layout.tp)]
    views = [region.memory for region in regions]
    seen = views if tensors is None else [tensors.bytes_over(view) for view in views]
    return KvPlaces(regions, KvMemory(layout, seen), lambda: None)
