"""Settings of PdgateConnector from `--kv-transfer-config`, checked before anything starts.

{"kv_connector": "PdgateConnector",
 "kv_connector_module_path": "pdgate.engine.vllm.connector",
 "kv_role": "kv_producer", "kv_port": 28000,
 "kv_connector_extra_config": {"transfer": "tcp", "api": "127.0.0.1:8000"}}

Data-parallel ranks of one host listen at kv_port, kv_port + 1, ... The API server has all of them behind it: without
X-data-parallel-rank it gives the prompt that D sent to one to another, which knows nothing of it.

Source: vLLM 0.32.0, v1/engine/core.py, run_engine_core() (whose `data_parallel_index` stays when a rank of a dense model
takes itself for an engine of its own); v1/engine/core_client.py, engine_ranks_managed; v1/engine/input_processor.py,
process_inputs() (a rank counts from the first behind that API server).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from pdgate.cluster.queue import settings as queue_settings
from pdgate.engine.vllm.dialects import DialectMode
from pdgate.protocols.instance import Role

ROLES: Final[Mapping[str, str]] = {
    "kv_producer": Role.PREFILL,
    "kv_consumer": Role.DECODE,
    "kv_both": Role.BOTH,
}

CHOICES: Final[Mapping[str, Sequence[str]]] = {
    "mode": tuple(DialectMode),
    "mover": ("process", "threads"),
}


@dataclass(frozen=True, slots=True)
class Extra:
    """kv_connector_extra_config.

    Attributes:
        transfer: Name of a transfer backend (`pdgate.transfers`).
        host: Where the KV side listens; with a wildcard, set `advertise`.
        advertise: What peers dial, if that differs.
        api: host:port of this engine's own HTTP API. P needs it to prefill what D asks it
            for (vllm-kvt batch).
        lease_seconds: How long P keeps blocks for D, and how long D waits for P.
        mode: How KV moves with vllm-kvt (dialects.py).
        mover: "process" or "threads": who writes into peers (kv_region.py).
        queue: URL of the prefill queue, for D (dialects.py); empty for none.
        model: What P and D compare to know that they serve the same model; the model's
            path if empty.
        kv_secret_file: Holds the secrets of the fleet, one a line; empty for what the environment
            says (PDGATE_KV_SECRET_FILE, PDGATE_KV_SECRET), if anything.
        kv_tls_cert_file, kv_tls_key_file, kv_tls_ca_file: Encrypt what engines say to each other,
            beside the secret.
    """

    transfer: str = "tcp"
    host: str = "127.0.0.1"
    advertise: str = ""
    api: str = ""
    lease_seconds: float = 30.0
    mode: str = DialectMode.LAYERWISE.value
    queue: str = ""
    mover: str = "process"
    model: str = ""
    kv_secret_file: str = ""
    kv_tls_cert_file: str = ""
    kv_tls_key_file: str = ""
    kv_tls_ca_file: str = ""


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """
    Attributes:
        kv_port: 0 for any, which only an engine that is never asked may have.
        served_model: What its HTTP API calls the model.
        api_rank: What its HTTP API calls this data-parallel rank; None where it has no other.
        recomputes: vLLM computes what does not come of a load, in place of ending its request.
    """

    role: str
    kv_port: int
    extra: Extra
    served_model: str
    api_rank: int | None = None
    recomputes: bool = False


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


def read(
    role: str,
    kv_port: int,
    extra: Mapping[str, Any],
    served_model: str,
    api_rank: int | None = None,
    *,
    recomputes: bool = False,
) -> VllmSettings:
    """Raises ValueError, naming the setting."""
    if role not in ROLES:
        raise ValueError(f"kv_role must be one of {', '.join(ROLES)}, not {role!r}")
    if not isinstance(kv_port, int) or not 0 <= kv_port < 65536:
        raise ValueError(f"kv_port must be a port, not {kv_port!r}")
    known = {field.name: type(field.default) for field in fields(Extra)}
    if unknown := sorted(set(extra) - set(known)):
        raise ValueError(
            f"kv_connector_extra_config has no {unknown[0]!r}; there are {', '.join(known)}"
        )
    for name in sorted(extra):
        if not _fits(extra[name], known[name]):
            raise ValueError(f"kv_connector_extra_config.{name} must be a {known[name].__name__}")
    chosen = Extra(**extra)
    if chosen.lease_seconds <= 0:
        raise ValueError("kv_connector_extra_config.lease_seconds must be positive")
    for name, choices in CHOICES.items():
        if extra.get(name, choices[0]) not in choices:
            raise ValueError(
                f"kv_connector_extra_config.{name} must be one of {', '.join(choices)}"
            )
    if chosen.queue:
        _check_queue(role, chosen.queue)
    # An engine that only asks needs no port that others know, and often shares its host.
    port = 0 if role == "kv_consumer" else kv_port
    return VllmSettings(ROLES[role], port, chosen, served_model, api_rank, recomputes)


def _check_queue(role: str, queue: str) -> None:
    if role == "kv_producer":
        raise ValueError(
            "kv_connector_extra_config.queue is for decode engines: "
            "beside this one, run `pdgate prefill-worker`"
        )
    try:
        queue_settings.read(queue)
    except ValueError as error:
        raise ValueError(f"kv_connector_extra_config.queue: {error}") from None


def _fits(value: Any, kind: type) -> bool:
    kinds = (int, float) if kind is float else (kind,)
    return isinstance(value, kinds) and not isinstance(value, bool)
