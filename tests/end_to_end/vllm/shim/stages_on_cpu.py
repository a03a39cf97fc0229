"""Our connector, in an engine of several pipeline stages on the CPU.

Named as `kv_connector_module_path`, because each worker imports that before its first step. vLLM 0.32.0
makes the buffers that come from the stage before in its profile run (v1/worker/gpu_model_runner.py,
_dummy_run()), which the CPU build leaves out with --enforce-eager: the second stage then dies of an assert
in its first step, with or without a connector.
"""

from typing import Any

from vllm.v1.worker.gpu_model_runner import GPUModelRunner  # type: ignore[import-not-found]

from pdgate.engine.vllm.connector import PdgateConnector

__all__ = ["PdgateConnector"]

_gather = GPUModelRunner.sync_and_gather_intermediate_tensors


def _with_buffers(runner: Any, *args: Any, **kwargs: Any) -> Any:
    if runner.intermediate_tensors is None:
        runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
            batch_size=runner.max_num_tokens,
            dtype=runner.model_config.dtype,
            device=runner.device,
        )
    return _gather(runner, *args, **kwargs)


GPUModelRunner.sync_and_gather_intermediate_tensors = _with_buffers
