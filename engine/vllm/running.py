"""The parts that live in vLLM's worker, put together once its KV cache is there.

KV cache -- region --> hand-over (dialects) <--> worker's half <-- orders, reports --> vLLM
                          '-- KV port, peers        '-- calls to our own API
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from pdgate.engine.connector import Core, Keep
from pdgate.engine.hand_over.settings import ConnectorSettings
from pdgate.engine.vllm.census import Census, Gather, Seat, taken
from pdgate.engine.vllm.dialects import DialectMode, Dialects, QueuedDialects
from pdgate.engine.vllm.kv_region import Rebase, open_region, pages_of
from pdgate.engine.vllm.passes import Passes, new_secret
from pdgate.engine.vllm.prefill_call import PrefillCalls
from pdgate.engine.vllm.settings import VllmSettings
from pdgate.engine.vllm.step_end import Steps
from pdgate.engine.vllm.worker_side import Fellows, WorkerSide
from pdgate.transfer import registry
from pdgate.transfer.base import Backend
from pdgate.transfer.device.base import DeviceEvent
from pdgate.transfer.memory import HOST
from pdgate.transfer.runtime.fleet import Identity, configured
from pdgate.transfer.runtime.tls import Tls

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunningWorker:
    """
    Attributes:
        layers: Place in the model of each layer that is here, by its name in vLLM.
        number: Of this worker.
    """

    worker: WorkerSide
    hand_over: Dialects
    backend: Backend
    layers: Mapping[str, int]
    number: int

    @classmethod
    def start(
        cls,
        settings: VllmSettings,
        model: str,
        tensors: Mapping[str, Any],
        bound: Iterable[Any],
        instruction_set: str,
        rebase: Rebase,
        seat: Seat,
        gather: Gather,
        place: str = HOST,
        moment: Callable[[], DeviceEvent | None] = lambda: None,
    ) -> Self:
        """Peers are served from now on. Raises ValueError, OSError, LookupError, TransferError.

        `model` is what peers compare; what follows it is for `open_region`. `place` and `moment`: of
        the KV cache, and as ConnectorSettings have it. Waits for all workers
        of the engine, twice: for what they have, and for where they listen.
        """
        extra = settings.extra
        secret = new_secret()
        met = gather((pages_of(tensors, instruction_set).share, secret))
        found = taken(seat, [share for share, _ in met])
        passes = Passes(met[0][1])
        if extra.queue and len(met) > 1:
            raise ValueError("kv_connector_extra_config.queue is for engines of one worker")
        tls = Tls(extra.kv_tls_cert_file, extra.kv_tls_key_file, extra.kv_tls_ca_file)
        identity = configured(extra.kv_secret_file, tls)
        backend = registry.load(
            extra.transfer, identity=identity, host=extra.host, advertise=extra.advertise
        )
        moved = rebase if extra.mover == "process" else None
        region, pages = open_region(backend, tensors, bound, instruction_set, moved, place)
        made: list[Dialects] = []
        steps = Steps(moment)

        def hand_over(core: Core) -> Dialects:
            kind = QueuedDialects if extra.queue else Dialects
            made.append(
                kind(
                    mode=DialectMode(extra.mode),
                    core=core,
                    layout=found.layout,
                    regions=[region],
                    backend=backend,
                    settings=replace(
                        _connector_settings(settings, model, identity, seat, found),
                        moment=moment,
                        step_end=steps.end,
                    ),
                )
            )
            return made[0]

        def calls(failed: Callable[[str, str], None]) -> PrefillCalls:
            seconds = 2 * extra.lease_seconds
            return PrefillCalls(
                extra.api, settings.served_model, seconds, failed, settings.api_rank
            )

        fellows = None
        if len(met) > 1:

            def keep_for(name: str, key: str, readers: Sequence[str]) -> Keep:
                return made[0].keep_for(name, key, readers)

            fellows = Fellows(passes, seat.number == 0, keep_for)
        worker = WorkerSide(
            hand_over, calls, found.layout.block_tokens, fellows=fellows, steps=steps
        )
        layers = {name: layer for layer, name in enumerate(pages.layers, found.first_layer)}
        made[0].introduce(gather(made[0].worker))
        address = worker.connector.kv_address
        log.info(
            "KV of %s at %s:%d over %s, worker %d of %d",
            *(model, *address, extra.transfer, seat.number + 1, len(met)),
        )
        return cls(worker, made[0], backend, layers, seat.number)

    def close(self) -> None:
        self.worker.close()
        self.backend.close()


def _connector_settings(
    settings: VllmSettings, model: str, identity: Identity, seat: Seat, found: Census
) -> ConnectorSettings:
    extra = settings.extra
    return ConnectorSettings(
        role=settings.role,
        host=extra.advertise or extra.host,
        api_port=0,
        kv_host=extra.host,
        # The others are found through the first one.
        kv_port=settings.kv_port if seat.number == 0 else 0,
        lease_seconds=extra.lease_seconds,
        model=model,
        queue=extra.queue,
        mover="process" if extra.mover == "process" else "threads",
        identity=identity,
        engine_id=found.life,
        borrows=settings.recomputes,
        ranks=(seat.number,) if seat.stages * seat.tp > 1 else (),
    )
