"""PdgateConnector: vLLM's hooks, guarded, and nothing else.

vLLM makes one in EngineCore (role SCHEDULER) and one in the worker (role WORKER). An
exception in a hook ends the whole engine, so each is caught, logged, and answered in the
way that hurts one request at most.

Source: vLLM 0.32.0, distributed/kv_transfer/kv_connector/v1/base.py, KVConnectorBase_V1;
which hook is called when and where: see the methods.
"""

import logging
from dataclasses import dataclass
from typing import Any

from pdgate.engine.vllm import metrics, settings, surface
from pdgate.engine.vllm.answers import Form
from pdgate.engine.vllm.guard import HOOKS, guarded
from pdgate.engine.vllm.orders import Order
from pdgate.engine.vllm.reports import NOTHING
from pdgate.engine.vllm.running import Running
from pdgate.engine.vllm.scheduler_side import SchedulerSide
from pdgate.engine.vllm.stats import PromMetrics, Stats

log = logging.getLogger(__name__)


@dataclass
class Orders(surface.KVConnectorMetadata):  # type: ignore[misc]
    orders: tuple[Order, ...] = ()


@dataclass
class Handshake(surface.KVConnectorHandshakeMetadata):  # type: ignore[misc]
    """From the worker to the scheduler, once."""

    form: Form


class PdgateConnector(surface.KVConnectorBase_V1, surface.SupportsHMA):  # type: ignore[misc]
    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        """Raises ValueError for settings that cannot work: the engine does not start."""
        super().__init__(vllm_config, role, kv_cache_config)
        surface.check_version()
        surface.share_log()
        transfer, parallel = vllm_config.kv_transfer_config, vllm_config.parallel_config
        if parallel.tensor_parallel_size != 1 or parallel.pipeline_parallel_size != 1:
            raise ValueError("PdgateConnector needs tensor and pipeline parallel sizes of 1")
        if len(kv_cache_config.kv_cache_groups) > 1:
            raise ValueError("PdgateConnector knows models with one group of KV blocks only")
        self._settings = settings.read(
            transfer.kv_role,
            # Each data-parallel engine of a host is asked at a port of its own.
            transfer.kv_port + parallel.data_parallel_index,
            transfer.kv_connector_extra_config,
            vllm_config.model_config.served_model_name,
        )
        self._model = self._settings.extra.model or str(vllm_config.model_config.model)
        self._scheduler: SchedulerSide | None = None
        self._running: Running | None = None
        self._growth = metrics.Growth()
        if role == surface.KVConnectorRole.SCHEDULER:
            self._scheduler = SchedulerSide(vllm_config.cache_config.block_size)

    # EngineCore.

    @guarded(None)
    def set_xfer_handshake_metadata(self, metadata: dict[int, Handshake]) -> None:
        """Once, before the first request; keyed by rank, of which there is one."""
        (from_worker,) = metadata.values()
        self._decides.answers_with(from_worker.form)

    @guarded((0, False))
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        """On every step until the request has blocks. True: the load runs beside the steps."""
        tokens = self._decides.matched(request, num_computed_tokens)
        return tokens, tokens > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        try:
            (block_ids, *_) = blocks.get_block_ids()
            self._decides.allocated(request, block_ids, num_external_tokens)
        # The request waits for a load from here on, so it must not be left at that.
        except Exception:
            log.exception("no load could be ordered for %s", request.request_id)
            if num_external_tokens > 0:
                self._decides.refuse(request.request_id, "no load could be ordered")

    @guarded(Orders())
    def build_connector_meta(self, scheduler_output: Any) -> Orders:
        """On every step; the orders reach the worker with it."""
        try:
            self._follow(scheduler_output)
        # Waiting peers must not have these pages; everything else goes on.
        except Exception:  # noqa: BLE001
            HOOKS.about("build_connector_meta")
        return Orders(self._decides.take_orders())

    def _follow(self, step: Any) -> None:
        if not self._decides.holding:
            return
        for request_id in step.preempted_req_ids or ():
            self._decides.preempted(request_id)
        cached = step.scheduled_cached_reqs
        before = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        before |= {new.req_id: new.num_computed_tokens for new in step.scheduled_new_reqs}
        for request_id, tokens in before.items():
            groups = step.kv_connector_block_state.get_block_ids(request_id)
            end = tokens + step.num_scheduled_tokens[request_id]
            self._decides.computing(request_id, groups[0] if groups else (), end)

    @guarded((False, None))
    def request_finished(self, request: Any, block_ids: list[int]) -> Any:
        ending = self._decides.finished(request, request.status.name, block_ids)
        if ending.as_abort:
            # vLLM asks us before it tells the client, and reads the reason from here
            # (0.32.0, v1/core/sched/scheduler.py, update_from_output()).
            request.status = type(request.status).FINISHED_ABORTED
        return ending.keeps, ending.answer

    @guarded((False, None))
    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:
        return self.request_finished(request, block_ids[0] if block_ids else [])

    # The worker.

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Once, before anything is served; what it raises ends the start."""
        layers = self._vllm_config.compilation_config.static_forward_context
        bound = [layers[name].kv_cache for name in kv_caches]
        isa = surface.instruction_set(next(iter(kv_caches.values())))
        self._running = Running.start(
            self._settings, self._model, kv_caches, bound, isa, surface.rebase
        )

    @guarded(None)
    def get_handshake_metadata(self) -> Handshake | None:
        """Once, after `register_kv_caches`."""
        if self._running is None:
            return None
        return Handshake(self._running.hand_over.answer_form())

    @guarded(None)
    def handle_preemptions(self, kv_connector_metadata: Orders) -> None:
        """Before anything of a step that preempts."""
        if self._running is not None:
            self._running.worker.evict(kv_connector_metadata.orders)

    def bind_connector_metadata(self, connector_metadata: Orders) -> None:
        """On every step, before the forward pass; also on steps without one."""
        super().bind_connector_metadata(connector_metadata)
        try:
            if self._running is not None:
                self._running.worker.obey(connector_metadata.orders)
        # As for `guarded`, which would also hide a failure of vLLM's own part.
        except Exception:  # noqa: BLE001
            HOOKS.about("bind_connector_metadata")

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Nothing to do: loads were started with the orders."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to do: a request runs only when all of its load is there."""

    @guarded(None)
    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """After each layer's attention. On a CPU its KV is in the blocks by now."""
        if self._running is not None:
            self._running.worker.computed(self._running.layers[layer_name])

    def wait_for_save(self) -> None:
        """Nothing to do: blocks stay where they are until they are reported sent."""

    @guarded((None, None))
    def get_finished(self, finished_req_ids: set[str]) -> Any:
        results = self._running.worker.results() if self._running is not None else NOTHING
        return set(results.sent), set(results.received)

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        """Instead of get_finished, where vLLM knows it: a failed load is named by its id."""
        try:
            results = self._running.worker.results() if self._running is not None else NOTHING
        # As for `guarded`, but the answer has to be made anew each time.
        except Exception:  # noqa: BLE001
            HOOKS.about("get_transfer_results")
            results = NOTHING
        return surface.KVConnectorTransferResults(
            finished_sending=set(results.sent),
            finished_recving=set(results.received),
            failed_recving=set(results.failed),
        )

    @guarded(None)
    def get_kv_connector_stats(self) -> Stats | None:
        if self._running is None:
            return None
        worker = self._running.worker
        counters = worker.connector.counters
        grown = self._growth.since(
            metrics.Totals(
                bytes=counters.bytes_moved,
                transfers=counters.transfers,
                seconds=worker.load_seconds,
                failed=counters.failed,
                expired=counters.expired,
                peers_refused=self._running.hand_over.settings.identity.refusals.unproven,
                held_blocks=worker.held_blocks,
                stranded_blocks=counters.stranded,
            )
        )
        return Stats(grown) if grown is not None else None

    @guarded(None)
    def shutdown(self) -> None:
        if self._running is not None:
            self._running.close()

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Replaying a whole graph would skip the hook of each layer."""
        return True

    # The API server.

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Stats:
        return Stats(data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> PromMetrics:
        return PromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    @property
    def _decides(self) -> SchedulerSide:
        if self._scheduler is None:
            raise RuntimeError("this is the worker's connector")
        return self._scheduler
