"""All that pdgate imports from vLLM, and does to its tensors. Its connector API calls itself experimental.

TESTED is what tests/end_to_end/vllm runs on. Another release starts with a warning if
everything below is there, and not at all if something is missing: better than a hook that
is never called.
"""

# Without stubs all of vLLM is Any for the type checker: what we hand over is checked on our
# side of connector.py.
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from pdgate.engine.vllm.census import Seat
from pdgate.transfer.device.base import DeviceEvent
from pdgate.transfer.memory import HOST

try:
    import vllm  # type: ignore[import-not-found]
    from vllm.config import (  # type: ignore[import-not-found]
        get_current_vllm_config_or_none,
    )
    from vllm.distributed.kv_transfer.kv_connector.factory import (  # type: ignore[import-not-found]
        KVConnectorFactory,
    )
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (  # type: ignore[import-not-found]
        KVConnectorBase_V1,
        KVConnectorHandshakeMetadata,
        KVConnectorMetadata,
        KVConnectorRole,
        KVConnectorTransferResults,
        KVConnectorWorkerMetadata,
        SupportsHMA,
    )
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (  # type: ignore[import-not-found]
        KVConnectorPromMetrics,
        KVConnectorStats,
    )
    from vllm.v1.metrics.utils import (  # type: ignore[import-not-found]
        create_metric_per_engine,
    )
except ImportError as error:
    raise ImportError(f"PdgateConnector does not fit this vLLM: {error}") from error

__all__ = [
    "KVConnectorBase_V1",
    "KVConnectorHandshakeMetadata",
    "KVConnectorMetadata",
    "KVConnectorPromMetrics",
    "KVConnectorRole",
    "KVConnectorStats",
    "KVConnectorTransferResults",
    "KVConnectorWorkerMetadata",
    "SupportsHMA",
    "check_version",
    "create_metric_per_engine",
    "gather",
    "instruction_set",
    "rebase",
    "recomputes",
    "register",
    "seat",
    "share_log",
]

TESTED: Final = ("0.32.0",)

log = logging.getLogger(__name__)


def check_version() -> None:
    version = str(vllm.__version__).partition("+")[0]
    if version not in TESTED:
        log.warning("PdgateConnector is tested on vLLM %s, not %s", ", ".join(TESTED), version)


def register(name: str, module: str) -> None:
    """Lets vLLM find the class `name` of a module by its name alone, wherever that module was imported.

    MultiConnector looks its children's counts up so, in the API server, which ends if it finds none: vLLM 0.32.0,
    kv_connector/v1/multi_connector.py, build_kv_connector_stats().
    """
    # It is already, where the module is imported anew.
    with suppress(ValueError):
        KVConnectorFactory.register_connector(name, module, name)


def recomputes(config: Any) -> bool:
    """Whether vLLM computes what does not come of a load, in place of ending its request.

    A child of MultiConnector has a config of its own, and vLLM's scheduler goes by the outer one. It is known in
    workers, who decide whether anything is loaded that need not be. So both have to say so.

    Source: vLLM 0.32.0, v1/core/sched/scheduler.py, Scheduler.__init__() and _handle_failed_recving();
    kv_connector/v1/multi_connector.py, _get_connector_classes_and_configs(); v1/worker/worker_base.py, initialize_from_config().
    """
    configs = [config, get_current_vllm_config_or_none() or config]
    policies = [one.kv_transfer_config.kv_load_failure_policy for one in configs]
    return policies == ["recompute", "recompute"]


def share_log() -> None:
    """What pdgate logs is seen where vLLM's own lines are: it configures only its logger."""
    ours, theirs = logging.getLogger("pdgate"), logging.getLogger("vllm")
    for handler in theirs.handlers:
        if handler not in ours.handlers:
            ours.addHandler(handler)
    ours.setLevel(theirs.level)
    ours.propagate = theirs.propagate


def seat(config: Any, latent: bool) -> Seat:
    """Seat of this worker in vLLM's process groups. `latent`: the model's KV has one head (MLA).

    Source: vLLM 0.32.0, distributed/parallel_state.py; config/model.py, ModelConfig.
    """
    from vllm.distributed.parallel_state import (  # type: ignore[import-not-found]
        get_pp_group,
        get_tp_group,
    )

    tp, pp = get_tp_group(), get_pp_group()
    heads = 1 if latent else config.model_config.get_total_num_kv_heads()
    return Seat(pp.rank_in_group, tp.rank_in_group, pp.world_size, tp.world_size, heads)


def gather(mine: Any) -> list[Any]:
    """What each worker of this engine passes, stage by stage. Blocks until all have."""
    from torch import distributed
    from vllm.distributed.parallel_state import get_pp_group, get_tp_group

    found = [mine]
    for group in (get_tp_group(), get_pp_group()):
        if group.world_size > 1:
            every: list[Any] = [None] * group.world_size
            distributed.all_gather_object(every, found, group=group.cpu_group)
            found = [one for part in every for one in part]
    return found


def moment(there: str) -> DeviceEvent | None:
    """Event behind all that this thread's stream has been asked for; None on a CPU, where it is done."""
    if there == HOST:
        return None
    import torch

    event: DeviceEvent = torch.cuda.Event()
    event.record()  # type: ignore[attr-defined]
    return event


def instruction_set(tensor: Any, latent: bool) -> str:
    """Instruction set for which the CPU backend orders K and V inside a block; empty on another device.

    Source: vLLM 0.32.0, v1/attention/backends/cpu_attn.py, _get_attn_isa().
    """
    if tensor.device.type != "cpu":
        return ""
    import torch
    from vllm.v1.attention.backends import cpu_attn  # type: ignore[import-not-found]

    if latent:
        return "cpu-mla-amx" if torch.cpu._is_amx_tile_supported() else "cpu-mla"
    block_tokens, head_dim = tensor.shape[2], tensor.shape[3] // 2
    return f"cpu-{cpu_attn._get_attn_isa(tensor.dtype, block_tokens, head_dim)}"


def rebase(tensors: Iterable[Any], to: memoryview) -> None:
    """The same tensors, at the same offsets of other bytes, which they keep alive.

    What is in the old ones is lost to them.
    """
    import torch

    storage = torch.frombuffer(to, dtype=torch.uint8).untyped_storage()
    # The only mode in which tensors that were made in it can be changed.
    with torch.inference_mode():
        for tensor in tensors:
            tensor.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
