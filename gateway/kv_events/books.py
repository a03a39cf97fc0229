"""What is heard of engines' KV caches, for /metrics."""

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from pdgate.gateway.kv_events.feeds import Feeds, Heard
from pdgate.gateway.kv_events.tokenizing import Tokenizing
from pdgate.gateway.kv_events.translation import Translation

PUBLISHER = ("instance", "rank")


class KvEventBooks(Collector):
    def __init__(
        self, feeds: Feeds, translation: Translation, tokenizing: Tokenizing | None
    ) -> None:
        self._feeds = feeds
        self._translation = translation
        self._tokenizing = tokenizing

    def collect(self) -> Iterator[Metric]:
        blocks = CounterMetricFamily(
            "pdgate_kv_event_blocks",
            "KV blocks of which engines said what became of them.",
            labels=(*PUBLISHER, "event"),
        )
        troubles = CounterMetricFamily(
            "pdgate_kv_event_troubles",
            "What went wrong in following an engine's KV events.",
            labels=(*PUBLISHER, "kind"),
        )
        replays = CounterMetricFamily(
            "pdgate_kv_event_replays", "Asked of engines.", labels=PUBLISHER
        )
        lag = GaugeMetricFamily(
            "pdgate_kv_event_lag_seconds",
            "From the last batch's being published to its being read here, by both clocks.",
            labels=PUBLISHER,
        )
        connected = GaugeMetricFamily(
            "pdgate_kv_event_connected",
            "1 where an engine's KV events are listened to, 0 where they should be.",
            labels=("instance",),
        )
        cached = GaugeMetricFamily(
            "pdgate_kv_event_cached_blocks",
            "KV blocks that an engine has, by what it said.",
            labels=PUBLISHER,
        )
        for instance_id, engine in self._feeds.engines.items():
            every = engine.heard.values()
            connected.add_metric(
                (instance_id,), int(bool(every) and all(heard.feed.connected for heard in every))
            )
            for rank, heard in engine.heard.items():
                publisher = (instance_id, str(rank))
                self._blocks(blocks, publisher, heard)
                self._troubles(troubles, publisher, instance_id, rank, heard)
                replays.add_metric(publisher, heard.feed.counts.replays)
                lag.add_metric(publisher, heard.lag_seconds)
                cached.add_metric(publisher, len(self._translation.cached(instance_id, rank)))
        yield from (blocks, troubles, replays, lag, connected, cached)
        yield GaugeMetricFamily(
            "pdgate_kv_event_links",
            "Token blocks of which it is known where in calls' prompts they lie.",
            len(self._translation.links),
        )
        if self._tokenizing is not None:
            asked = CounterMetricFamily(
                "pdgate_tokenized_prompts",
                "Prompts of which engines were to tell the tokens.",
                labels=("outcome",),
            )
            asked.add_metric(("told",), self._tokenizing.asked.answered)
            asked.add_metric(("failed",), self._tokenizing.asked.failed)
            asked.add_metric(("given_up",), self._tokenizing.asked.given_up)
            yield asked

    def _blocks(
        self, metric: CounterMetricFamily, publisher: tuple[str, str], heard: Heard
    ) -> None:
        metric.add_metric((*publisher, "stored"), heard.seen.stored)
        metric.add_metric((*publisher, "removed"), heard.seen.removed)

    def _troubles(
        self,
        metric: CounterMetricFamily,
        publisher: tuple[str, str],
        instance_id: str,
        rank: int,
        heard: Heard,
    ) -> None:
        counts, cached = heard.feed.counts, self._translation.cached(instance_id, rank)
        for kind, count in (
            ("gap", counts.gaps),
            ("resync", counts.resyncs),
            ("restart", counts.restarts),
            ("cleared", heard.seen.cleared),
            ("malformed", heard.seen.malformed + heard.feed.malformed),
            ("orphan", cached.orphans),
            ("overflow", cached.overflowed),
        ):
            metric.add_metric((*publisher, kind), count)
