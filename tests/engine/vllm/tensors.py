"""KV tensors as vLLM's CPU backend lays them out, without torch."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pdgate.transfer.memory import address

BASE = 1 << 20
SHAPE = (256, 2, 32, 64)
LAYER_BYTES = math.prod(SHAPE) * 4


@dataclass(frozen=True)
class Storage:
    address: int

    def data_ptr(self) -> int:
        return self.address

    def nbytes(self) -> int:
        return 2 * LAYER_BYTES


@dataclass
class Tensor:
    """
    Attributes:
        strides: In numbers; empty if it is contiguous.
        storage: Address of the first byte of the storage that it is a view of.
    """

    address: int
    shape: tuple[int, ...] = SHAPE
    dtype: Any = "torch.float32"
    strides: tuple[int, ...] = ()
    storage: int = BASE
    item_bytes: int = 4

    def element_size(self) -> int:
        return self.item_bytes

    def stride(self) -> tuple[int, ...]:
        """Of vLLM's LBHNC, unless it is said."""
        if self.strides:
            return self.strides
        return tuple(math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape)))

    def data_ptr(self) -> int:
        return self.address

    def untyped_storage(self) -> Storage:
        return Storage(self.storage)


def two_layers() -> dict[str, Tensor]:
    return {"layers.1": Tensor(BASE + LAYER_BYTES), "layers.0": Tensor(BASE)}


def rebase(tensors: Iterable[Tensor], to: memoryview) -> None:
    """As surface.rebase does it with torch's."""
    for tensor in tensors:
        tensor.address += address(to) - tensor.storage
        tensor.storage = address(to)
