"""Which data-parallel rank an engine is: where peers ask it, and how it asks itself.

    port     ranks of one host listen at kv_port, kv_port + 1, ...
    rank     the API server has all ranks behind it: without X-data-parallel-rank it gives the prompt that D sent
             to one of them to another, which knows nothing of it

Source: vLLM 0.32.0, v1/engine/core.py, run_engine_core() (whose `data_parallel_index` stays when a rank of a dense
model takes itself for an engine of its own); v1/engine/core_client.py, engine_ranks_managed;
v1/engine/input_processor.py, process_inputs() (a rank counts from the first behind that API server).
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class DataRank:
    """
    Attributes:
        port_offset: From `kv_port`.
        header: What this engine's own API server calls it; None where it has no other.
    """

    port_offset: int = 0
    header: int | None = None


def rank_of(parallel: Any) -> DataRank:
    """By vLLM's ParallelConfig, in the engine core or a worker."""
    index = int(parallel.data_parallel_index)
    local = parallel.data_parallel_rank_local
    if local is None or parallel.data_parallel_external_lb:
        return DataRank(index)
    if parallel.data_parallel_hybrid_lb:
        return DataRank(int(local), int(local))
    return DataRank(index, index)
