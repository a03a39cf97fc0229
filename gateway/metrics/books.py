"""Counts what happens to calls, in plain numbers; Prometheus text is made when asked for (telling.py).

The names are documented in docs/operations/metrics.md, which a test keeps equal.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from operator import attrgetter
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from pdgate.forwarders.record import LegRecord, Record, Trace
from pdgate.gateway.debug import RecentCalls
from pdgate.gateway.logs.calls import CallLog
from pdgate.gateway.metrics.ended import Row, by_kind, row_of
from pdgate.gateway.metrics.gaps import EVERY, Gaps
from pdgate.gateway.metrics.histogram import Histogram
from pdgate.gateway.metrics.tally import InstanceTally, Tally
from pdgate.gateway.metrics.telling import families
from pdgate.protocols.errors import GatewayError
from pdgate.scheduling.candidate import Candidate

MOST_MODELS: Final = 64
"""That have metrics of their own; what calls name could be anything."""

OTHER: Final = "other"
"""All further ones together."""

MOST_ROWS: Final = 32
"""Of calls that have ended, that wait to be added up: it takes a fraction of a millisecond, and in
that no call moves."""


_SAID: Final = attrgetter("taken", "reason")
"""Of a decision."""


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
        self._rows: list[Row] = []
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
        record.count()
        rows = self._rows
        rows.append(row_of(record))
        if len(rows) >= MOST_ROWS:
            self.add_up()
        if self.log.wanted:
            self.log.write(record)
        if record.trace is not None:
            record.trace.end(record)
        # Only now; it may be large.
        record.end_of_answer = b""
        if self._recent is not None:
            self._recent.ended(record)

    def collect(self) -> Iterator[Metric]:
        self.add_up()
        here = {candidate.instance.id for candidate in self.candidates}
        # Fleets change: those that have left would be told for ever.
        for gone in self.instances.keys() - here:
            del self.instances[gone]
        return families(self)

    def add_up(self) -> None:
        """All that has been counted is in the tallies now."""
        rows, self._rows = self._rows, []
        for (protocol, name, route, path, outcome, streams), alike in by_kind(rows).items():
            tally = self.tallies[protocol, self._model(name, path), route]
            tally.add(path, outcome, streams, alike)
        self.decisions.update(map(_SAID, chain.from_iterable([row[9] for row in rows])))
        self._add_legs(rows)

    def _add_legs(self, rows: Iterable[Row]) -> None:
        there: defaultdict[str, list[LegRecord]] = defaultdict(list)
        for row in rows:
            attempts, legs = row[7], row[8]
            for leg in legs:
                there[leg.instance.id].append(leg)
                if leg.attempt != attempts:
                    self.retries[leg.role, leg.outcome] += 1
        for name, legs in there.items():
            at = self.instances.get(name)
            if at is None:
                at = self.instances[name] = InstanceTally(legs[0].instance)
            at.add(legs)

    def _model(self, name: str | None, path: str) -> str:
        """As it is counted: a name that no engine serves is nobody's."""
        if not name or not path:
            return name if name in self._models else ""
        if name not in self._models:
            if len(self._models) >= MOST_MODELS:
                return OTHER
            self._models.add(name)
        return name

    def _itl(self, record: Record) -> Histogram:
        model = self._model(record.call.model, record.path)
        return self.tallies[record.protocol, model, record.call.route].itl


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
