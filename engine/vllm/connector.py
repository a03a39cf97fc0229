"""PdgateConnector: vLLM's hooks, guarded, and nothing else.

vLLM makes one in EngineCore (role SCHEDULER) and one in the worker (role WORKER). An
exception in a hook ends the whole engine, so each is caught, logged, and answered in the
way that hurts one request at most.

Source: vLLM 0.32.0, distributed/kv_transfer/kv_connector/v1/base.py, KVConnectorBase_V1;
which hook is called when and where: see the methods.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pdgate.engine.vllm import metrics, settings, surface
from pdgate.engine.vllm.answers import Form
from pdgate.engine.vllm.guard import HOOKS, guarded
from pdgate.engine.vllm.kv_region import place_of
from pdgate.engine.vllm.orders import Order
from pdgate.engine.vllm.reports import NOTHING
from pdgate.engine.vllm.running import RunningWorker
from pdgate.engine.vllm.scheduler_side import SchedulerSide
from pdgate.engine.vllm.stats import PromMetrics, VllmStats

log = logging.getLogger(__name__)


@dataclass
class StepOrders(surface.KVConnectorMetadata):  # type: ignore[misc]
    orders: tuple[Order, ...] = ()


@dataclass
class Handshake(surface.KVConnectorHandshakeMetadata):  # type: ignore[misc]
    """Message of each worker to the scheduler, once."""

    form: Form


@dataclass
class FailedLoads(surface.KVConnectorWorkerMetadata):  # type: ignore[misc]
    """Loads that failed at a worker, by request ids, for the scheduler; vLLM adds up what all workers say."""

    ids: frozenset[str]

    def aggregate(self, other: "FailedLoads") -> "FailedLoads":
        return FailedLoads(self.ids | other.ids)


class AlwaysNo:
    """No, whether it is read or called: 0.33's base class has a name for it that 0.32's lacks."""

    def __bool__(self) -> bool:
        return False

    def __call__(self, *_: Any, **__: Any) -> bool:
        return False


PLANNED: Final = ("FullAttentionSpec", "MLAAttentionSpec")
"""Kinds of KV cache whose blocks are all kept and mean their tokens by their place."""


class PdgateConnector(surface.KVConnectorBase_V1, surface.SupportsHMA):  # type: ignore[misc]
    supports_sleep_mode: Final = AlwaysNo()
    """Peers read the very memory that sleeping frees. So `unregister_kv_caches` and
    `restore_kv_caches` of vLLM 0.33 are left as they are."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        """Raises ValueError for settings that cannot work: the engine does not start."""
        super().__init__(vllm_config, role, kv_cache_config)
        surface.check_version()
        surface.share_log()
        transfer, parallel = vllm_config.kv_transfer_config, vllm_config.parallel_config
        _check_parallel(parallel)
        _check_groups(kv_cache_config.kv_cache_groups)
        if getattr(vllm_config.model_config, "enable_sleep_mode", False):
            raise ValueError("PdgateConnector does not go with --enable-sleep-mode")
        rank = settings.rank_of(parallel)
        self._settings = settings.read(
            transfer.kv_role,
            # Each data-parallel engine of a host is asked at a port of its own.
            transfer.kv_port + rank.port_offset,
            transfer.kv_connector_extra_config,
            vllm_config.model_config.served_model_name,
            rank.header,
            recomputes=surface.recomputes(vllm_config),
        )
        self._model = self._settings.extra.model or str(vllm_config.model_config.model)
        self._scheduler: SchedulerSide | None = None
        self._running: RunningWorker | None = None
        self._workers = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
        self._growth = metrics.Growth()
        self._invalid: frozenset[int] = frozenset()
        if role == surface.KVConnectorRole.SCHEDULER:
            self._scheduler = SchedulerSide(
                vllm_config.cache_config.block_size, recomputes=self._settings.recomputes
            )

    # EngineCore.

    def set_xfer_handshake_metadata(self, metadata: Mapping[int, Handshake]) -> None:
        """Hear the handshakes by tensor-parallel rank, of a vLLM that knows no pipeline stages."""
        self.set_xfer_handshake_metadata_pp_aware({(0, tp): one for tp, one in metadata.items()})

    @guarded(None)
    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: Mapping[tuple[int, int], Handshake]
    ) -> None:
        """Hear the handshakes once, before the first request; by pipeline stage and tensor-parallel rank.

        Peers ask the first worker, which knows where the others are.
        """
        if len(metadata) != self._workers:
            log.error("%d of %d workers hand KV over", len(metadata), self._workers)
        self._decides.answers_with(metadata[0, 0].form)

    def get_finished_count(self) -> int | None:
        """None: every worker reports each request, and vLLM waits for all."""
        return None

    @guarded(None)
    def update_connector_output(self, connector_output: Any) -> None:
        """Hear what all workers say, after each step."""
        said = getattr(connector_output, "kv_connector_worker_meta", None)
        if isinstance(said, FailedLoads):
            self._decides.load_failed(said.ids)

    @guarded((0, False))
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        """Matched tokens, asked on every step until the request has blocks. True: the load runs beside the steps."""
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

    @guarded(StepOrders())
    def build_connector_meta(self, scheduler_output: Any) -> StepOrders:
        """Orders for the workers, on every step."""
        try:
            self._follow(scheduler_output)
        # Waiting peers must not have these pages; everything else goes on.
        except Exception:  # noqa: BLE001
            HOOKS.about("build_connector_meta")
        return StepOrders(self._decides.take_orders())

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
        """Register the KV caches once, before anything is served; what it raises ends the start."""
        config = self._vllm_config
        layers = config.compilation_config.static_forward_context
        bound = [layers[name].kv_cache for name in kv_caches]
        latent = bool(getattr(config.model_config, "use_mla", False))
        first = next(iter(kv_caches.values()))
        place = place_of(first)
        isa = surface.instruction_set(first, latent)
        if first.shape[2] != config.cache_config.block_size:
            raise ValueError(
                f"vLLM's blocks have {config.cache_config.block_size} tokens and its kernel's "
                f"{first.shape[2]}: set --block-size to the latter"
            )
        seat = surface.seat(config, latent)
        self._running = RunningWorker.start(
            self._settings,
            self._model,
            kv_caches,
            bound,
            isa,
            surface.rebase,
            seat,
            surface.gather,
            place,
            lambda: surface.moment(place),
        )
        self._growth = metrics.Growth(seat.number)

    @guarded(None)
    def get_handshake_metadata(self) -> Handshake | None:
        """Handshake of this worker, asked once, after `register_kv_caches`."""
        if self._running is None:
            return None
        return Handshake(self._running.hand_over.answer_form())

    @guarded(None)
    def handle_preemptions(self, kv_connector_metadata: StepOrders) -> None:
        """Obey before anything of a step that preempts."""
        if self._running is not None:
            self._running.worker.evict(kv_connector_metadata.orders)

    def bind_connector_metadata(self, connector_metadata: StepOrders) -> None:
        """Obey on every step, before the forward pass; also on steps without one."""
        super().bind_connector_metadata(connector_metadata)
        try:
            if self._running is not None:
                self._running.worker.obey(connector_metadata.orders)
        # As for `guarded`, which would also hide a failure of vLLM's own part.
        except Exception:  # noqa: BLE001
            HOOKS.about("bind_connector_metadata")

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Do nothing: loads were started with the orders."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: a request runs only when all of its load is there."""

    @guarded(None)
    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Note a layer, after its attention. On a CPU its KV is in the blocks by now; on a GPU it is when
        the event has happened that the hand-over records now.
        """
        if self._running is not None:
            self._running.worker.computed(self._running.layers[layer_name])

    def wait_for_save(self) -> None:
        """Do nothing: blocks stay where they are until they are reported sent."""

    @guarded((None, None))
    def get_finished(self, finished_req_ids: set[str]) -> Any:
        results = self._running.worker.results() if self._running is not None else NOTHING
        return set(results.sent), set(results.received)

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        """Results in place of get_finished, where vLLM knows it: a failed load is named by its id."""
        try:
            results = self._running.worker.results() if self._running is not None else NOTHING
        # As for `guarded`, but the answer has to be made anew each time.
        except Exception:  # noqa: BLE001
            HOOKS.about("get_transfer_results")
            results = NOTHING
        self._invalid = results.invalid
        return surface.KVConnectorTransferResults(
            finished_sending=set(results.sent),
            finished_recving=set(results.received),
            failed_recving=set(results.failed),
        )

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks of loads that were given up, of the results that vLLM has just asked for: 0.32.0,
        v1/worker/kv_connector_model_runner_mixin.py and v1/worker/gpu/kv_connector.py.
        """
        invalid, self._invalid = self._invalid, frozenset()
        return set(invalid)

    @guarded(None)
    def build_connector_worker_meta(self) -> FailedLoads | None:
        """Failed loads of every step; rarely any."""
        if self._running is None:
            return None
        failed = self._running.worker.take_failed()
        return FailedLoads(failed) if failed else None

    @guarded(None)
    def get_kv_connector_stats(self) -> VllmStats | None:
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
        return VllmStats(grown) if grown is not None else None

    @guarded(None)
    def shutdown(self) -> None:
        if self._running is not None:
            self._running.close()

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """Heads before tokens, so that another rank's heads are one run in a page.

        A wish: vLLM leaves it out where no kernel can. A latent has no heads to split.
        """
        model = vllm_config.model_config
        return None if model is None or getattr(model, "use_mla", False) else "LBHNC"

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Replaying a whole graph would skip the hook of each layer."""
        return True

    # The API server.

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> VllmStats:
        return VllmStats(data or {})

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


def _check_parallel(parallel: Any) -> None:
    """Raises ValueError, naming what is in the way."""
    for name in ("prefill_context_parallel_size", "decode_context_parallel_size"):
        if (size := getattr(parallel, name, 1)) != 1:
            raise ValueError(f"PdgateConnector knows no context parallelism: {name} is {size}")
    # Each microbatch calls the hook of each layer by itself, while the others' tokens are not computed: vLLM 0.32.0,
    # v1/worker/gpu_ubatch_wrapper.py, UBatchWrapper._run_ubatches(). A layer counts as computed at its first call.
    if parallel.use_ubatching:
        raise ValueError("PdgateConnector knows no microbatches (--enable-dbo, --ubatch-size)")


def _check_groups(groups: Sequence[Any]) -> None:
    """Raises ValueError, naming what is in the way."""
    kinds = [type(group.kv_cache_spec).__name__ for group in groups]
    if len(kinds) > 1 or not set(kinds) <= set(PLANNED):
        raise ValueError(
            f"PdgateConnector hands over one group of {' or '.join(PLANNED)}, and this model has "
            f"{', '.join(kinds)}"
        )


surface.register(PdgateConnector.__name__, __name__)
