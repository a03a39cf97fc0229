"""vLLM's KV cache as a region of pages that peers reach, and that our mover process can map.

    one storage   layer 0: block 0, block 1, ...   layer 1: block 0, ...
    a block       HND [kv_heads][block_tokens][content]    or NHD [block_tokens][kv_heads][content]

That is a Layout of one plane (engine/layout.py): content is K and V of one head and token side by side, or
a latent (MLA), which has one head. With vLLM's layouts LBHNC and LBNHC the strides say the order. In
others (BLHNC, LHBNC ...) the pages of a layer do not follow one another: those are refused.

On a GPU the tensors stay where they are: the region is that memory of the device's. Not run yet.

On a CPU the last axis is nominal: the kernel keeps K and V of a head and block in two halves, in an order
that its instruction set likes. So there only whole heads can be split off, and the instruction set belongs
to what peers compare.

    before    private storage of torch's      <- the tensors of all layers
    after     backend.allocate(): shared      <- the same tensors, at the same offsets

vLLM allocates its KV cache as private memory, from which only a thread of the worker can
write, taking turns at the interpreter with the model. So before the cache is used for the
first time its tensors are pointed to memory that a process of ours maps as well. They are the
very objects that the model's layers hold, so nothing of vLLM has to know.

Source: vLLM 0.32.0, v1/kv_cache_layout.py and v1/worker/utils.py, allocate_kv_cache() (views are
[B, H, N, C], whatever lies in between); v1/attention/backends/cpu_attn.py, strides as measured;
v1/worker/gpu_model_runner.py: initialize_kv_cache() calls register_kv_caches() with the tensors
that bind_kv_cache() has given to the layers; torch 2.13, Tensor.set_().
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pdgate.engine.vllm.census import WorkerShare
from pdgate.transfer.base import Backend, Region
from pdgate.transfer.memory import CUDA, HOST, DeviceMemory
from pdgate.transfer.plan.layout import LayoutOrder

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
    def stride(self) -> Sequence[int]: ...
    def data_ptr(self) -> int: ...
    def untyped_storage(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class VllmKvMemory:
    """
    Attributes:
        address, length: Of the pages of all layers, in bytes.
        layers: Layer names by place in memory.
    """

    share: WorkerShare
    address: int
    length: int
    layers: tuple[str, ...]


def pages_of(tensors: Mapping[str, Tensor], instruction_set: str) -> VllmKvMemory:
    """`instruction_set`: of a CPU's kernel that alone knows what is in a page; else empty.

    Raises ValueError for a layout that we cannot copy page by page.
    """
    if not tensors:
        raise ValueError("vLLM has no KV cache to hand over")
    names = sorted(tensors, key=lambda name: tensors[name].data_ptr())
    first = tensors[names[0]]
    shape = tuple(first.shape)
    if len(shape) != 4:
        raise ValueError(f"a KV cache of shape {shape} is not known here")
    blocks, kv_heads, block_tokens, content = shape
    order = _order(shape, tuple(first.stride()))
    share = WorkerShare(
        layers=len(names),
        blocks=blocks,
        kv_heads=kv_heads,
        block_tokens=block_tokens,
        content=content,
        dtype=f"{str(first.dtype).removeprefix('torch.')} {instruction_set}".strip(),
        item_bytes=first.element_size(),
        order=None if instruction_set else order,
    )
    layer_bytes = blocks * kv_heads * block_tokens * content * share.item_bytes
    storage = first.untyped_storage()
    for place, name in enumerate(names):
        tensor = tensors[name]
        if (
            tuple(tensor.shape) != shape
            or tensor.dtype != first.dtype
            or tuple(tensor.stride()) != tuple(first.stride())
            or tensor.untyped_storage().data_ptr() != storage.data_ptr()
            or tensor.data_ptr() != first.data_ptr() + place * layer_bytes
        ):
            raise ValueError(f"the KV cache of {name} does not follow that of the layer before")
    return VllmKvMemory(share, first.data_ptr(), len(names) * layer_bytes, tuple(names))


def place_of(tensor: Any) -> str:
    """Place of the KV cache, as the transfer has it. Raise ValueError for devices that it knows not."""
    if tensor.device.type == "cpu":
        return HOST
    if tensor.device.type == CUDA:
        return f"{CUDA}:{tensor.device.index or 0}"
    raise ValueError(
        f"PdgateConnector hands over KV of CPUs and NVIDIA GPUs, not of {tensor.device}"
    )


def _order(shape: tuple[int, ...], strides: tuple[int, ...]) -> LayoutOrder:
    """Of heads and tokens in a page. Raises ValueError if pages are no runs in a row."""
    _, kv_heads, block_tokens, content = shape
    page = kv_heads * block_tokens * content
    if strides == (page, block_tokens * content, content, 1):
        return LayoutOrder.HND
    if strides == (page, content, kv_heads * content, 1):
        return LayoutOrder.NHD
    raise ValueError(
        f"a KV cache of shape {shape} and strides {strides} keeps no pages in a row "
        "(VLLM_KV_CACHE_LAYOUT LBHNC and LBNHC do)"
    )


def open_region(
    backend: Backend,
    tensors: Mapping[str, Any],
    bound: Iterable[Any],
    instruction_set: str,
    rebase: Rebase | None,
    place: str = HOST,
) -> tuple[Region, VllmKvMemory]:
    """`bound`: the tensors that the layers have. Without `rebase`, and in any `place` but the host's
    memory ("cuda:0"), all stays where it is.

    Raises ValueError, OSError, TransferError.
    """
    found = pages_of(tensors, instruction_set)
    if place != HOST:
        return backend.register(DeviceMemory(place, found.address, found.length)), found
    if rebase is not None:
        every = list({id(one): one for one in (*tensors.values(), *bound)}.values())
        if why := _why_private(found, every):
            log.warning("the KV cache stays private memory, so threads move it: %s", why)
        else:
            region = backend.allocate(every[0].untyped_storage().nbytes())
            rebase(every, region.memory)
            return region, pages_of(tensors, instruction_set)
    return backend.register((found.address, found.length)), found


def _why_private(found: VllmKvMemory, every: list[Any]) -> str:
    """Empty if all of it can be moved: a holder of the old memory would see none of it."""
    for tensor in every:
        storage = getattr(tensor, "untyped_storage", None)
        if storage is None:
            return f"a layer holds a {type(tensor).__name__}"
        if storage().data_ptr() != found.address:
            return "it is not all there is in its storage"
    return ""
