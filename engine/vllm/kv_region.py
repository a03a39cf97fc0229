"""vLLM's KV cache as a region of pages that peers reach, and that our mover process can map.

    one storage   layer 0: block 0, block 1, ...   layer 1: block 0, ...
    a block       [kv_heads][block_tokens][2 * head_dim], contiguous (HND)

That is Layout's order (engine/layout.py), so whole blocks can be copied. Inside a block
the last axis is nominal: the CPU backend keeps K and V in two halves, in an order that its
instruction set likes, which is why the instruction set belongs to what peers compare.

    before    private storage of torch's      <- the tensors of all layers
    after     backend.allocate(): shared      <- the same tensors, at the same offsets

vLLM allocates its KV cache as private memory, from which only a thread of the worker can
write, taking turns at the interpreter with the model. So before the cache is used for the
first time its tensors are pointed to memory that a process of ours maps as well. They are the
very objects that the model's layers hold, so nothing of vLLM has to know.

Source: vLLM 0.32.0, v1/attention/backends/cpu_attn.py, strides as measured;
v1/worker/gpu_model_runner.py: initialize_kv_cache() calls register_kv_caches() with the tensors
that bind_kv_cache() has given to the layers; torch 2.13, Tensor.set_().
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pdgate.engine.layout import Layout
from pdgate.transfer.base import Backend, Region

Rebase = Callable[[Sequence[Any], memoryview], None]
"""Points tensors to the same offsets of other bytes."""

log = logging.getLogger(__name__)


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


def pages_of(tensors: Mapping[str, Tensor], instruction_set: str) -> KvMemory:
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


def open_region(
    backend: Backend,
    tensors: Mapping[str, Any],
    bound: Iterable[Any],
    instruction_set: str,
    rebase: Rebase | None,
) -> tuple[Region, KvMemory]:
    """`bound`: the tensors that the layers have. Without `rebase` all stays where it is.

    Raises ValueError, OSError, TransferError.
    """
    found = pages_of(tensors, instruction_set)
    if rebase is not None:
        every = list({id(one): one for one in (*tensors.values(), *bound)}.values())
        if why := _why_private(found, every):
            log.warning("the KV cache stays private memory, so threads move it: %s", why)
        else:
            region = backend.allocate(every[0].untyped_storage().nbytes())
            rebase(every, region.memory)
            return region, pages_of(tensors, instruction_set)
    return backend.register((found.address, found.length)), found


def _why_private(found: KvMemory, every: list[Any]) -> str:
    """Empty if all of it can be moved: a holder of the old memory would see none of it."""
    for tensor in every:
        storage = getattr(tensor, "untyped_storage", None)
        if storage is None:
            return f"a layer holds a {type(tensor).__name__}"
        if storage().data_ptr() != found.address:
            return "it is not all there is in its storage"
    return ""
