"""Counts what happens to calls, in plain numbers; Prometheus text is made when asked for.

The names are documented in docs/operations/metrics.md, which a test keeps equal.
"""

import json
import logging
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

from pdgate.forwarders.record import DECODE_ONLY, DISAGGREGATED, Record
from pdgate.gateway.debug import RecentCalls
from pdgate.protocols.errors import GatewayError
from pdgate.protocols.instance import Role
from pdgate.scheduling.candidate import Candidate
from pdgate.scheduling.neighbours import calls_of_this_gateway

calls_log = logging.getLogger("pdgate.calls")

SECONDS: Final[Sequence[float]] = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip


class Histogram:
    """Counts per bucket of SECONDS, the last one open, and their sum."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.sum += seconds

    def buckets(self) -> list[tuple[str, float]]:
        so_far, found = 0, []
        for bound, count in zip((*map(str, SECONDS), "+Inf"), self.counts, strict=True):
            so_far += count
            found.append((bound, float(so_far)))
        return found


class Tally:
    """What is counted of one protocol.

    Attributes:
        outcomes: (path, outcome) -> calls.
        handovers: Result -> disaggregated calls.
        breaks: Result -> answers whose engine broke off after their first byte.
        queue: Seconds until there was room for a call, where calls wait for it.
        prefill, decode: Seconds of each leg of good calls.
    """

    __slots__ = (
        "breaks", "call_seconds", "decode", "first_byte_seconds", "handovers", "outcomes", "prefill",
        "queue",
    )  # fmt: skip

    def __init__(self) -> None:
        self.outcomes: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.handovers: defaultdict[str, int] = defaultdict(int)
        self.breaks: defaultdict[str, int] = defaultdict(int)
        self.call_seconds = Histogram()
        self.first_byte_seconds = Histogram()
        self.queue = Histogram()
        self.prefill = Histogram()
        self.decode = Histogram()

    def stages(self) -> Iterator[tuple[str, Histogram]]:
        if any(self.queue.counts):
            yield "queue", self.queue
        yield "prefill", self.prefill
        yield "decode", self.decode


class Books(Collector):
    """Everything that is counted in one process.

    Attributes:
        recent: Keeps records if operators may look at single calls.
        logs_calls: One JSON line per call on the logger "pdgate.calls".
    """

    def __init__(
        self,
        candidates: Iterable[Candidate],
        recent: RecentCalls | None = None,
        logs_calls: bool = False,
    ) -> None:
        self._candidates = candidates
        self._recent = recent
        self.logs_calls = logs_calls
        self._in_flight = 0
        self._tallies: defaultdict[str, Tally] = defaultdict(Tally)
        self._refused: Counter[str] = Counter()
        self._retries: Counter[tuple[str, str]] = Counter()
        self._decisions: Counter[tuple[str, str]] = Counter()

    @property
    def in_flight(self) -> int:
        """Calls that are being served."""
        return self._in_flight

    def refused(self, error: GatewayError) -> None:
        """A request that never became a call."""
        self._refused[str(error.status)] += 1

    def opened(self, record: Record) -> None:
        self._in_flight += 1
        if self._recent is not None:
            self._recent.keep(record)

    def closed(self, record: Record) -> None:
        """The record has ended."""
        self._in_flight -= 1
        tally = self._tallies[record.protocol]
        tally.outcomes[record.path, record.outcome] += 1
        if record.ended is not None:
            tally.call_seconds.observe(record.ended - record.started)
        if record.committed is not None:
            tally.first_byte_seconds.observe(record.committed - record.started)
        if record.queued_seconds is not None:
            tally.queue.observe(record.queued_seconds)
        for leg in record.legs:
            if leg.attempt != record.attempts:
                self._retries[leg.role, leg.outcome] += 1
            elif leg.outcome == "ok" and leg.ended is not None:
                stage = tally.prefill if leg.role is Role.PREFILL else tally.decode
                stage.observe(leg.ended - leg.started)
        for decision in record.decisions.values():
            self._decisions[decision.taken, decision.reason] += 1
        if record.path == DISAGGREGATED:
            tally.handovers[_handover(record)] += 1
        elif record.path == DECODE_ONLY:
            tally.handovers["recomputed" if record.committed is not None else "failed"] += 1
        if record.expired:
            tally.handovers["expired"] += record.expired
        if record.resumed:
            tally.breaks["resumed"] += record.resumed
        if record.committed is not None and record.outcome not in ("ok", "client_gone"):
            tally.breaks["lost"] += 1
        if self.logs_calls:
            calls_log.info(json.dumps(record.as_json()))
        if self._recent is not None:
            self._recent.ended(record)

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]:
        yield GaugeMetricFamily(
            "pdgate_calls_in_flight", "Calls that are being served.", self._in_flight
        )
        yield _counter(
            "pdgate_calls",
            "Calls that ended, by protocol, path and outcome.",
            ("protocol", "path", "outcome"),
            [
                ((protocol, path, outcome), count)
                for protocol, tally in self._tallies.items()
                for (path, outcome), count in tally.outcomes.items()
            ],
        )
        yield _counter(
            "pdgate_requests_refused",
            "Requests that were wrong before any engine was asked.",
            ("status",),
            (((status,), count) for status, count in self._refused.items()),
        )
        yield _counter(
            "pdgate_retried_legs",
            "Legs whose attempt failed and was followed by another.",
            ("role", "outcome"),
            self._retries.items(),
        )
        yield _counter(
            "pdgate_kv_handover",
            "How split calls fared: whether decode answered with prefill's KV.",
            ("protocol", "result"),
            [
                ((protocol, result), count)
                for protocol, tally in self._tallies.items()
                for result, count in tally.handovers.items()
            ],
        )
        yield _counter(
            "pdgate_broken_answers",
            "Answers that broke off after their first byte, by whether another engine went on.",
            ("protocol", "result"),
            [
                ((protocol, result), count)
                for protocol, tally in self._tallies.items()
                for result, count in tally.breaks.items()
            ],
        )
        yield _counter(
            "pdgate_disaggregation_decisions",
            "Attempts that could have been split, by what was decided and why.",
            ("decision", "reason"),
            self._decisions.items(),
        )
        yield _histogram(
            "pdgate_call_seconds",
            "From the call's arrival to the end of its answer.",
            ("protocol",),
            [((protocol,), tally.call_seconds) for protocol, tally in self._tallies.items()],
        )
        yield _histogram(
            "pdgate_first_byte_seconds",
            "From the call's arrival to the first byte of its answer.",
            ("protocol",),
            [((protocol,), tally.first_byte_seconds) for protocol, tally in self._tallies.items()],
        )
        yield _histogram(
            "pdgate_stage_seconds",
            "How long each leg of a good call took.",
            ("protocol", "stage"),
            [
                ((protocol, stage), found)
                for protocol, tally in self._tallies.items()
                for stage, found in tally.stages()
            ],
        )
        yield from self._instances()

    def _instances(self) -> Iterator[GaugeMetricFamily]:
        labels = ("instance", "role")
        up = GaugeMetricFamily("pdgate_instance_up", "1 if calls may go there.", labels=labels)
        calls = GaugeMetricFamily(
            "pdgate_instance_calls", "Legs in flight at an instance.", labels=labels
        )
        for candidate in self._candidates:
            key = (candidate.instance.id, candidate.instance.role.value)
            up.add_metric(key, float(candidate.fit))
            calls.add_metric(key, float(calls_of_this_gateway(candidate)))
        yield up
        yield calls


def _handover(record: Record) -> str:
    """A call that ended for reasons of its own says nothing of the hand-over."""
    if record.handed_over:
        return "done"
    return "unknown" if record.outcome in ("client_gone", "engine_rejected") else "failed"


class Together(Collector):
    """Several collectors as one."""

    def __init__(self, *parts: Collector) -> None:
        self._parts = parts

    def collect(self) -> Iterator[Metric]:
        for part in self._parts:
            yield from part.collect()


def registry_of(counted: Collector) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(counted)
    return registry


def _counter(
    name: str, text: str, labels: Sequence[str], counts: Iterable[tuple[Sequence[str], int]]
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=labels)
    for key, count in counts:
        family.add_metric(key, count)
    return family


def _histogram(
    name: str, text: str, labels: Sequence[str], found: Iterable[tuple[Sequence[str], Histogram]]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, text, labels=labels)
    for key, histogram in found:
        family.add_metric(key, histogram.buckets(), histogram.sum)
    return family
