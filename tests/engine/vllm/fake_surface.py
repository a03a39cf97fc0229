"""As much of the vllm package as the connector is built on, for where vLLM is not installed.

Source: vLLM 0.32.0, the modules that surface.py imports.
"""

import sys
from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest


class Base:
    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        self._vllm_config = vllm_config

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        self.bound = connector_metadata


class Role(Enum):
    SCHEDULER = 0
    WORKER = 1


class Status(IntEnum):
    FINISHED_LENGTH_CAPPED = auto()
    FINISHED_ABORTED = auto()
    FINISHED_ERROR = auto()


class Plain:
    """A base class without anything that matters here."""


@dataclass
class TransferResults:
    finished_sending: set[str] = field(default_factory=set)
    finished_recving: set[str] = field(default_factory=set)
    failed_recving: set[str] = field(default_factory=set)


@dataclass
class Stats:
    data: dict[str, Any] = field(default_factory=dict)


class Factory:
    """Finds connectors by their names."""

    modules: ClassVar[dict[str, str]] = {}

    @classmethod
    def register_connector(cls, name: str, module: str, class_name: str) -> None:
        if name in cls.modules:
            raise ValueError(f"{name} is there")
        cls.modules[name] = f"{module}:{class_name}"


BASE = "vllm.distributed.kv_transfer.kv_connector.v1"
OURS = ("surface", "stats", "connector")


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """For one test; nothing that was imported with it stays."""
    modules: dict[str, dict[str, Any]] = {
        "vllm": {"__version__": "0.32.0+cpu"},
        "vllm.config": {"get_current_vllm_config_or_none": lambda: None},
        f"{BASE.rpartition('.')[0]}.factory": {"KVConnectorFactory": Factory},
        f"{BASE}.base": {
            "KVConnectorBase_V1": Base,
            "KVConnectorHandshakeMetadata": Plain,
            "KVConnectorMetadata": Plain,
            "KVConnectorRole": Role,
            "KVConnectorTransferResults": TransferResults,
            "KVConnectorWorkerMetadata": Plain,
            "SupportsHMA": Plain,
        },
        f"{BASE}.metrics": {"KVConnectorPromMetrics": Plain, "KVConnectorStats": Stats},
        "vllm.v1.metrics.utils": {"create_metric_per_engine": dict},
    }
    for name, holds in modules.items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            path = ".".join(parts[:end])
            if path not in sys.modules:
                monkeypatch.setitem(sys.modules, path, ModuleType(path))
        for what, value in holds.items():
            setattr(sys.modules[name], what, value)
    for module in OURS:
        # Set first, so that what the test imports is taken away again.
        monkeypatch.setitem(sys.modules, f"pdgate.engine.vllm.{module}", ModuleType("gone"))
        monkeypatch.delitem(sys.modules, f"pdgate.engine.vllm.{module}")


def config(
    context_parallel: int = 1, policy: str = "fail", *, ubatching: bool = False, **extra: Any
) -> Any:
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(
            kv_role="kv_both",
            kv_port=0,
            kv_connector_extra_config=extra,
            kv_load_failure_policy=policy,
        ),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            data_parallel_index=0,
            data_parallel_rank_local=None,
            data_parallel_external_lb=False,
            data_parallel_hybrid_lb=False,
            decode_context_parallel_size=context_parallel,
            use_ubatching=ubatching,
        ),
        model_config=SimpleNamespace(served_model_name="tiny", model="/model"),
        cache_config=SimpleNamespace(block_size=4),
        compilation_config=SimpleNamespace(static_forward_context={}),
    )


class FullAttentionSpec:
    """Named as vLLM's."""


class SlidingWindowSpec:
    """As well."""


def cache_groups(*kinds: type) -> Any:
    groups = [SimpleNamespace(kv_cache_spec=kind()) for kind in kinds or (FullAttentionSpec,)]
    return SimpleNamespace(kv_cache_groups=groups)
