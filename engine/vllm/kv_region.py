"""vLLM's KV cache as a region that peers reach, and that our mover process can map.

    before    private storage of torch's      <- the tensors of all layers
    after     backend.allocate(): shared      <- the same tensors, at the same offsets

vLLM allocates its KV cache as private memory, from which only a thread of the worker can
write, taking turns at the interpreter with the model. So before the cache is used for the
first time its tensors are pointed to memory that a process of ours maps as well. They are the
very objects that the model's layers hold, so nothing of vLLM has to know.

Source: vLLM 0.32.0, v1/worker/gpu_model_runner.py: initialize_kv_cache() calls
register_kv_caches() with the tensors that bind_kv_cache() has given to the layers; torch
2.13, Tensor.set_().
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pdgate.engine.vllm import memory
from pdgate.engine.vllm.memory import KvMemory
from pdgate.transfer.base import Backend, Region

Rebase = Callable[[Sequence[Any], memoryview], None]
"""Points tensors to the same offsets of other bytes."""

log = logging.getLogger(__name__)


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
    found = memory.of(tensors, instruction_set)
    if rebase is not None:
        every = list({id(one): one for one in (*tensors.values(), *bound)}.values())
        if why := _why_private(found, every):
            log.warning("the KV cache stays private memory, so threads move it: %s", why)
        else:
            region = backend.allocate(every[0].untyped_storage().nbytes())
            rebase(every, region.memory)
            return region, memory.of(tensors, instruction_set)
    return backend.register((found.address, found.length)), found


def _why_private(found: KvMemory, every: list[Any]) -> str:
    """Empty if all of it can be moved: whoever kept the old memory would see none of it."""
    for tensor in every:
        storage = getattr(tensor, "untyped_storage", None)
        if storage is None:
            return f"a layer holds a {type(tensor).__name__}"
        if storage().data_ptr() != found.address:
            return "it is not all there is in its storage"
    return ""
