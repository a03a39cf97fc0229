"""The parts that live in vLLM's worker, put together once its KV cache is there.

KV cache -- region --> hand-over (dialects) <--> worker's half <-- orders, reports --> vLLM
                          '-- KV port, peers        '-- calls to our own API
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from pdgate.engine.connector import Core
from pdgate.engine.hand_over.settings import ConnectorSettings
from pdgate.engine.vllm.dialects import Dialects, Mode, QueuedDialects
from pdgate.engine.vllm.kv_region import Rebase, open_region
from pdgate.engine.vllm.prefill_call import PrefillCalls
from pdgate.engine.vllm.settings import Settings
from pdgate.engine.vllm.worker_side import WorkerSide
from pdgate.transfer import registry
from pdgate.transfer.base import Backend
from pdgate.transfer.runtime.fleet import Identity, configured
from pdgate.transfer.runtime.tls import Tls

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Running:
    """
    Attributes:
        layers: Place in memory of each layer, by its name in vLLM.
    """

    worker: WorkerSide
    hand_over: Dialects
    backend: Backend
    layers: Mapping[str, int]

    @classmethod
    def start(
        cls,
        settings: Settings,
        model: str,
        tensors: Mapping[str, Any],
        bound: Iterable[Any],
        instruction_set: str,
        rebase: Rebase,
    ) -> Self:
        """Peers are served from now on. Raises ValueError, OSError, LookupError, TransferError.

        `model` is what peers compare; the rest is for `open_region`.
        """
        extra = settings.extra
        tls = Tls(extra.kv_tls_cert_file, extra.kv_tls_key_file, extra.kv_tls_ca_file)
        identity = configured(extra.kv_secret_file, tls)
        backend = registry.load(
            extra.transfer, identity=identity, host=extra.host, advertise=extra.advertise
        )
        moved = rebase if extra.mover == "process" else None
        region, found = open_region(backend, tensors, bound, instruction_set, moved)
        made: list[Dialects] = []

        def hand_over(core: Core) -> Dialects:
            kind = QueuedDialects if extra.queue else Dialects
            made.append(
                kind(
                    mode=Mode(extra.mode),
                    core=core,
                    layout=found.layout,
                    regions=[region],
                    backend=backend,
                    settings=_connector_settings(settings, model, identity),
                )
            )
            return made[0]

        def calls(failed: Callable[[str, str], None]) -> PrefillCalls:
            seconds = 2 * extra.lease_seconds
            return PrefillCalls(extra.api, settings.served_model, seconds, failed)

        worker = WorkerSide(hand_over, calls)
        layers = {name: layer for layer, name in enumerate(found.layers)}
        address = worker.connector.kv_address
        log.info("KV of %s at %s:%d over %s", model, *address, extra.transfer)
        return cls(worker, made[0], backend, layers)

    def close(self) -> None:
        self.worker.close()
        self.backend.close()


def _connector_settings(settings: Settings, model: str, identity: Identity) -> ConnectorSettings:
    extra = settings.extra
    return ConnectorSettings(
        role=settings.role,
        host=extra.advertise or extra.host,
        api_port=0,
        kv_host=extra.host,
        kv_port=settings.kv_port,
        lease_seconds=extra.lease_seconds,
        model=model,
        queue=extra.queue,
        mover="process" if extra.mover == "process" else "threads",
        identity=identity,
    )
