"""vLLM's KV tensors as pages that a peer can reach.

    one storage   layer 0: block 0, block 1, ...   layer 1: block 0, ...
    a block       [kv_heads][block_tokens][2 * head_dim], contiguous (HND)

That is Layout's order (engine/layout.py), so whole blocks can be copied. Inside a block
the last axis is nominal: the CPU backend keeps K and V in two halves, in an order that its
instruction set likes, which is why the instruction set belongs to what peers compare.

Source: vLLM 0.32.0, v1/attention/backends/cpu_attn.py; strides as measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pdgate.engine.layout import Layout


class Tensor(Protocol):
    """What is read of a torch.Tensor."""

    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def dtype(self) -> Any: ...
    def element_size(self) -> int: ...
    def is_contiguous(self) -> bool: ...
    def data_ptr(self) -> int: ...
    def untyped_storage(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class KvMemory:
    """
    Attributes:
        address, length: Of the pages of all layers, in bytes.
        layers: Layer names by place in memory.
    """

    layout: Layout
    address: int
    length: int
    layers: tuple[str, ...]


def of(tensors: Mapping[str, Tensor], instruction_set: str) -> KvMemory:
    """Raises ValueError for a layout that we cannot copy block by block."""
    if not tensors:
        raise ValueError("vLLM has no KV cache to hand over")
    names = sorted(tensors, key=lambda name: tensors[name].data_ptr())
    first = tensors[names[0]]
    if len(first.shape) != 4 or first.shape[3] % 2:
        raise ValueError(f"a KV cache of shape {tuple(first.shape)} is not known here")
    blocks, kv_heads, block_tokens, twice_head_dim = first.shape
    layout = Layout(
        layers=len(names),
        blocks=blocks,
        kv_heads=kv_heads,
        block_tokens=block_tokens,
        head_dim=twice_head_dim // 2,
        dtype=f"{str(first.dtype).removeprefix('torch.')} {instruction_set}".strip(),
        item_bytes=first.element_size(),
        # What a page holds is its kernel's secret, see above.
        order=None,
    )
    storage = first.untyped_storage()
    for place, name in enumerate(names):
        tensor = tensors[name]
        expected = first.data_ptr() + place * layout.blocks * layout.page_bytes
        if (
            tuple(tensor.shape) != tuple(first.shape)
            or tensor.dtype != first.dtype
            or not tensor.is_contiguous()
            or tensor.untyped_storage().data_ptr() != storage.data_ptr()
            or tensor.data_ptr() != expected
        ):
            raise ValueError(f"the KV cache of {name} does not follow that of the layer before")
    return KvMemory(layout, first.data_ptr(), layout.total_bytes, tuple(names))
