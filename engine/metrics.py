"""/metrics: vLLM's names where it has one, so that its dashboards and routers just work.

Source of the names: vLLM 0.32.0, v1/metrics/loggers.py.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pdgate.engine.connector import Connector
from pdgate.engine.core import EngineCore
from pdgate.transfer.runtime.refusals import Refusals

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class EngineMetrics(Collector):
    """Reads the core's numbers when asked; nothing is counted twice."""

    def __init__(
        self,
        core: EngineCore,
        connector: Connector | None,
        model_name: str,
        refusals: Refusals | None = None,
    ) -> None:
        self._refusals = refusals or Refusals()
        self._core = core
        self._connector = connector
        self._model_name = model_name

    def text(self) -> bytes:
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[Metric]:
        gauges, stats = self._core.gauges, self._core.stats
        used_share = gauges.blocks_used / gauges.blocks_total
        yield self._gauge("vllm:num_requests_running", "Requests in the batch", gauges.running)
        yield self._gauge(
            "vllm:num_requests_waiting",
            "Requests that wait for a turn or for their KV",
            gauges.waiting + gauges.loading,
        )
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of KV blocks, 0..1", used_share)
        yield self._counter("vllm:num_preemptions", "Jobs that lost pages", gauges.preemptions)
        yield self._counter("vllm:generation_tokens", "Sampled tokens", stats.generated)
        sources = {
            "local_compute": stats.prompts_computed,
            "local_cache_hit": stats.prompts_from_cache,
            "external_kv_transfer": stats.prompts_from_peer,
        }
        yield self._counter("vllm:prompt_tokens", "Prompt tokens", sum(sources.values()))
        yield self._split(
            "vllm:prompt_tokens_by_source", "Prompt tokens by what gave their KV", "source", sources
        )
        ends = {
            "stop": stats.requests_stopped,
            "length": stats.requests_cut,
            "abort": stats.requests_aborted,
        }
        yield self._split("vllm:request_success", "Ended requests", "finished_reason", ends)
        yield self._cache_config()
        yield from self._own()

    def _cache_config(self) -> Metric:
        """Its value is 1; what it says stands in its labels."""
        gauges = self._core.gauges
        says = {
            "model_name": self._model_name,
            "block_size": str(gauges.block_tokens),
            "num_gpu_blocks": str(gauges.blocks_total),
            "enable_prefix_caching": str(gauges.caches_prefixes),
        }
        family = GaugeMetricFamily(
            "vllm:cache_config_info", "How its KV cache is set up", labels=list(says)
        )
        family.add_metric(list(says.values()), 1)
        return family

    def _own(self) -> Iterator[Metric]:
        """What vLLM has no name for."""
        gauges, stats = self._core.gauges, self._core.stats
        free = gauges.blocks_total - gauges.blocks_used
        blocks = {"free": free, "used": gauges.blocks_used, "kept": gauges.blocks_kept}
        for state, count in blocks.items():
            yield self._gauge(f"pdgate_engine_blocks_{state}", f"KV blocks: {state}", count)
        yield self._gauge(
            "pdgate_engine_requests_loading", "Requests whose KV is under way", gauges.loading
        )
        yield self._gauge(
            "pdgate_engine_queued_prompt_tokens",
            "Prompt tokens that are still to be computed here",
            gauges.queued_tokens,
        )
        counters: dict[str, tuple[str, float]] = {
            "requests_failed": ("Requests refused with a server error", stats.requests_failed),
            "kv_loads_failed": ("Loads of KV that failed", stats.loads_failed),
            "kv_loaded_bytes": ("KV that came from peers", stats.loaded_bytes),
            "prompt_tokens_chosen": (
                "Prompt tokens that a peer was to compute, and that were rather computed here",
                stats.prompts_chosen,
            ),
            "first_tokens": ("Requests that got their first token", stats.first_tokens),
            "leases_ended": (
                "Kept pages that no decode engine fetched in time",
                stats.leases_ended,
            ),
            "turns": (
                "Steps of requests from which tokens of their answer came: tokens a step",
                stats.turns,
            ),
            "steps": ("Steps of the core", stats.steps),
            "stepping_seconds": ("Time spent in steps", stats.stepping_seconds),
        }
        if self._connector is not None:
            moved = self._connector.counters
            yield self._gauge(
                "pdgate_engine_blocks_stranded",
                "KV blocks in which a silent peer may still write",
                moved.stranded,
            )
            yield self._gauge(
                "pdgate_engine_blocks_lingering",
                "KV blocks of requests that are over, which a peer still reads",
                moved.lingering,
            )
            counters |= {
                "kv_transfers": ("Loads that ended well, as the connector saw it", moved.transfers),
                "kv_moved_bytes": ("KV that the connector moved", moved.bytes_moved),
                "kv_transfer_seconds": ("Time that loads took, all added up", moved.seconds),
                "kv_transfers_failed": ("Loads that failed or were cancelled", moved.failed),
                "kv_sent": ("Requests whose KV was handed over to a peer", moved.sent),
                "kv_sent_bytes": ("KV that was handed over to peers", moved.bytes_sent),
                "kv_sending_seconds": ("Time that took, all added up", moved.seconds_sending),
                "kv_sends_failed": ("Hand-overs that ended halfway", moved.sends_failed),
                "kv_leases_expired": ("Kept requests that expired", moved.expired),
            }
            for name, (meaning, number) in self._connector.gauges().items():
                yield self._gauge(name, meaning, number)
        for name, (meaning, number) in counters.items():
            yield self._counter(f"pdgate_engine_{name}", meaning, number)
        if stats.accepted:
            yield from self._of_guesses()
        if self._core.tiers:
            yield from self._of_tiers()
        refused = CounterMetricFamily(
            "pdgate_engine_kv_peers_refused",
            "Peers that did not prove who they are, by the port that they came to and by why",
            labels=["model_name", "port", "why"],
        )
        for (port, why), count in self._refusals.counts.items():
            refused.add_metric([self._model_name, port, why], count)
        yield refused

    def _of_guesses(self) -> Iterator[Metric]:
        """vLLM's names: a draft is what is guessed in one step of a request. Source: v1/spec_decode/metrics.py."""
        stats = self._core.stats
        yield self._counter(
            "vllm:spec_decode_num_drafts", "Steps with guesses", stats.turns_with_guesses
        )
        yield self._counter(
            "vllm:spec_decode_num_draft_tokens", "Tokens that were guessed", stats.guessed
        )
        yield self._counter(
            "vllm:spec_decode_num_accepted_tokens", "Guesses that were right", sum(stats.accepted)
        )
        yield self._split(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Guesses that were right, by their place in a step",
            "position",
            {str(place): count for place, count in enumerate(stats.accepted)},
        )
        for name, meaning, number in (
            ("used", "First steps with guesses from a state of prefill's", stats.states_used),
            ("accepted", "Guesses in them that were right", stats.states_accepted),
            (
                "refused",
                "What prefill gave along and was no state to guess from",
                stats.states_refused,
            ),
        ):
            yield self._counter(f"pdgate_engine_states_{name}", meaning, number)

    def _of_tiers(self) -> Iterator[Metric]:
        for name, meaning in (
            ("hits", "Blocks that a tier gave"),
            ("written", "Blocks that went to a tier"),
            ("dropped", "Blocks not written to a tier, as too many waited"),
            ("failed", "Blocks that could not be written to a tier"),
            ("broken", "What was found in a tier, or came from a peer, and was no block"),
            ("served", "Blocks given to engines of other hosts"),
            ("lost", "Times that a peer's tiers did not answer in time, or well"),
        ):
            by_medium = {tier.medium: getattr(tier.counts, name) for tier in self._core.tiers}
            yield self._split(f"pdgate_engine_kv_tier_{name}", meaning, "medium", by_medium)

    def _gauge(self, name: str, meaning: str, number: float) -> Metric:
        family = GaugeMetricFamily(name, meaning, labels=["model_name"])
        family.add_metric([self._model_name], number)
        return family

    def _counter(self, name: str, meaning: str, number: float) -> Metric:
        family = CounterMetricFamily(name, meaning, labels=["model_name"])
        family.add_metric([self._model_name], number)
        return family

    def _split(self, name: str, meaning: str, label: str, numbers: dict[str, int]) -> Metric:
        family = CounterMetricFamily(name, meaning, labels=["model_name", label])
        for kind, number in numbers.items():
            family.add_metric([self._model_name, kind], number)
        return family
