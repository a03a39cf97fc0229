"""Counts what happens to calls, in plain numbers; Prometheus text is made when asked for (telling.py).

The names are documented in docs/operations/metrics.md, which a test keeps equal.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from pdgate.forwarders.record import DECODE_ONLY, DISAGGREGATED, Record, Trace
from pdgate.gateway.debug import RecentCalls
from pdgate.gateway.logs.calls import CallLog
from pdgate.gateway.metrics.gaps import EVERY, Gaps
from pdgate.gateway.metrics.histogram import Histogram
from pdgate.gateway.metrics.tally import InstanceTally, Tally
from pdgate.gateway.metrics.telling import families
from pdgate.protocols.errors import GatewayError
from pdgate.protocols.instance import Instance
from pdgate.scheduling.candidate import Candidate

MOST_MODELS: Final = 64
"""That have metrics of their own; what calls name could be anything."""

OTHER: Final = "other"
"""All further ones together."""

MOST_ROWS: Final = 256
"""That wait to be added up."""


class Tracer(Protocol):
    def of(self, record: Record) -> Trace | None:
        """The trace of a call that begins; None where it is not sampled."""


class Books(Collector):
    """Everything that is counted in one process.

    Attributes:
        recent: Keeps records if operators may look at single calls.
        log: Writes a line for each call, if that is wanted.
        tracer: Says which calls are traced; None for none.
        tallies: (protocol, model, route) -> what was counted.
        instances: Id -> the legs there.
    """

    def __init__(
        self,
        candidates: Iterable[Candidate],
        recent: RecentCalls | None = None,
        log: CallLog | None = None,
    ) -> None:
        self.candidates = candidates
        self._recent = recent
        self.log = log or CallLog()
        self.tracer: Tracer | None = None
        self._in_flight = 0
        self._streams = 0
        self._models: set[str] = set()
        self.tallies: defaultdict[tuple[str, str, str], Tally] = defaultdict(Tally)
        self.instances: dict[str, InstanceTally] = {}
        self.refusals: Counter[str] = Counter()
        self.retries: Counter[tuple[str, str]] = Counter()
        self.decisions: Counter[tuple[str, str]] = Counter()

    @property
    def in_flight(self) -> int:
        """Calls that are being served."""
        return self._in_flight

    def refused(self, error: GatewayError) -> None:
        """A request that never became a call."""
        self.refusals[str(error.status)] += 1

    def opened(self, record: Record) -> None:
        self._in_flight += 1
        if self.tracer is not None:
            record.trace = self.tracer.of(record)
        if record.call.streams:
            if self._streams % EVERY == 0:
                record.gaps = Gaps(record, self._itl)
            self._streams += 1
        if self._recent is not None:
            self._recent.keep(record)

    def closed(self, record: Record) -> None:
        """The record has ended."""
        self._in_flight -= 1
        model = self._model(record)
        tally = self.tallies[record.protocol, model, record.call.route]
        tally.outcomes[record.path, record.outcome] += 1
        record.count()
        rows = tally.rows
        rows.append(self._row(record, tally))
        if len(rows) >= MOST_ROWS:
            tally.add_up()
        for leg in record.legs:
            if leg.attempt != record.attempts:
                self.retries[leg.role, leg.outcome] += 1
            at = self.instances.get(leg.instance.id) or self._at(leg.instance)
            at.rows.append(
                (leg.started, leg.first_byte, leg.ended if leg.outcome == "ok" else None)
            )
            if len(at.rows) >= MOST_ROWS:
                at.add_up()
        for decision in record.decisions.values():
            self.decisions[decision.taken, decision.reason] += 1
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
        if self.log.wanted:
            self.log.write(record)
        if record.trace is not None:
            record.trace.end(record)
        # Only now; it may be large.
        record.end_of_answer = b""
        if self._recent is not None:
            self._recent.ended(record)

    def collect(self) -> Iterator[Metric]:
        here = {candidate.instance.id for candidate in self.candidates}
        # Fleets change: those that have left would be told for ever.
        for gone in self.instances.keys() - here:
            del self.instances[gone]
        self.add_up()
        return families(self)

    def add_up(self) -> None:
        """All that has been counted is in the histograms now."""
        for tally in self.tallies.values():
            tally.add_up()
        for at in self.instances.values():
            at.add_up()

    def _model(self, record: Record) -> str:
        """As it is counted: a name that no engine serves is nobody's."""
        name = record.call.model or ""
        if name in self._models:
            return name
        if not name or not record.path:
            return ""
        if len(self._models) >= MOST_MODELS:
            return OTHER
        self._models.add(name)
        return name

    def _itl(self, record: Record) -> Histogram:
        return self.tallies[record.protocol, self._model(record), record.call.route].itl

    def _at(self, instance: Instance) -> InstanceTally:
        found = self.instances[instance.id] = InstanceTally(instance)
        return found

    def _row(self, record: Record, tally: Tally) -> tuple[float | None, ...]:
        """In the order of COLUMNS."""
        started, committed, ended = record.started, record.committed, record.ended
        usage = record.usage
        if usage is not None:
            tokens = tally.tokens
            if usage.prompt is not None:
                tokens["prompt"] += usage.prompt
            if usage.generated is not None:
                tokens["generated"] += usage.generated
            # That nothing was cached is something else than that nobody says it.
            if usage.cached is not None:
                tokens["cached"] += usage.cached
        whole = None if ended is None else ended - started
        first = ttft = tpot = None
        if committed is not None:
            first = committed - started
            if record.call.streams:
                ttft = first
                if ended is not None and record.outcome == "ok":
                    tpot = _token_seconds(record, ended - committed)
        return whole, first, ttft, tpot, *record.times()


def _token_seconds(record: Record, seconds: float) -> float | None:
    """For one token, on the average, of a stream that took that long after its first byte.

    None if neither its engine says how many tokens there were nor its events were timed.
    """
    usage, gaps = record.usage, record.gaps
    if usage is not None and usage.generated is not None:
        return seconds / (usage.generated - 1) if usage.generated > 1 else None
    return gaps.seconds / gaps.count if gaps is not None and gaps.count else None


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
