"""Call stats: what happens to calls, in plain numbers. Samples are made when asked for (call_samples.py)."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from operator import attrgetter
from typing import Final, Protocol

from pdgate.forwarders.record import LegRecord, Record, Trace
from pdgate.gateway.debug import RecentCalls
from pdgate.gateway.logs import CallLog
from pdgate.gateway.metrics import families
from pdgate.gateway.metrics.aggregates import Aggregate, InstanceAggregate, Row, by_kind
from pdgate.gateway.metrics.call_samples import samples
from pdgate.gateway.metrics.family import Counter as CounterFamily
from pdgate.gateway.metrics.family import Key, Samples
from pdgate.gateway.metrics.gaps import EVERY, StreamGaps
from pdgate.gateway.metrics.histogram import Histogram
from pdgate.protocols.errors import GatewayError
from pdgate.scheduling.endpoint import Endpoint

MOST_MODELS: Final = 64
"""That have metrics of their own; what calls name could be anything."""

OTHER: Final = "other"
"""All further ones together."""

MOST_ROWS: Final = 32
"""Of calls that have ended, that wait to be added up: it takes a fraction of a millisecond, and in
that no call moves."""


_new: Final = tuple.__new__

GAVE_WAY: Final = ("gave_way", "cancelled", "ok")
"""What legs end with where a call gives way."""

_SAID: Final = attrgetter("taken", "reason")
"""Of a decision."""


class CallTracer(Protocol):
    def of(self, record: Record) -> Trace | None:
        """The trace of a call that begins; None where it is not sampled."""


class CallStats:
    """Everything that is counted in one process.

    Attributes:
        recent: Keeps records if operators may look at single calls.
        log: Writes a line for each call, if that is wanted.
        tracer: Says which calls are traced; None for none.
        aggregates: (protocol, model, route) -> what was counted.
        instances: Id -> the legs there.
        counts: Family -> label values -> how often that has happened.
    """

    def __init__(
        self,
        endpoints: Iterable[Endpoint],
        recent: RecentCalls | None = None,
        log: CallLog | None = None,
    ) -> None:
        self.endpoints = endpoints
        self._recent = recent
        self.log = log or CallLog()
        self.tracer: CallTracer | None = None
        self._in_flight = 0
        self._streams = 0
        self._models: set[str] = set()
        self._rows: list[Row] = []
        self.aggregates: defaultdict[tuple[str, str, str], Aggregate] = defaultdict(Aggregate)
        self.instances: dict[str, InstanceAggregate] = {}
        self.counts: defaultdict[CounterFamily, Counter[Key]] = defaultdict(
            Counter, {family: Counter() for family in families.EVENTS}
        )

    @property
    def in_flight(self) -> int:
        """Calls that are being served."""
        return self._in_flight

    def refused(self, error: GatewayError) -> None:
        """A request that never became a call."""
        self.counts[families.REQUESTS_REFUSED][str(error.status)] += 1

    def opened(self, record: Record, *, session: bool = False) -> None:
        """`session`: it is traced and kept, and not counted, as sessions have metrics of their own."""
        if self.tracer is not None:
            record.trace = self.tracer.of(record)
        if self._recent is not None:
            self._recent.keep(record)
        if session:
            return
        self._in_flight += 1
        if record.call.streams:
            if self._streams % EVERY == 0:
                record.gaps = StreamGaps(record, self._itl)
            self._streams += 1

    def closed(self, record: Record, *, session: bool = False) -> None:
        """The record has ended."""
        if not session:
            self._in_flight -= 1
            rows = self._rows
            rows.append(_row_of(record))
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

    def collect(self) -> Iterator[Samples]:
        self.add_up()
        here = {endpoint.instance.id for endpoint in self.endpoints}
        # Fleets change: those that have left would be shown for ever.
        for gone in self.instances.keys() - here:
            del self.instances[gone]
        return samples(self)

    def add_up(self) -> None:
        """All that has been counted is in the aggregates now."""
        rows, self._rows = self._rows, []
        for (protocol, name, route, path, outcome, streams), alike in by_kind(rows).items():
            aggregate = self.aggregates[protocol, self._model(name, path), route]
            aggregate.add(path, outcome, streams, alike)
        decisions = map(_SAID, chain.from_iterable([row.decisions.values() for row in rows]))
        self.counts[families.DECISIONS].update(decisions)
        self._add_legs(rows)

    def _add_legs(self, rows: Iterable[Row]) -> None:
        there: defaultdict[str, list[LegRecord]] = defaultdict(list)
        for row in rows:
            for leg in row.legs:
                there[leg.instance.id].append(leg)
                # That a call gave way is no failure of its legs.
                by_us = row.again and leg.outcome in GAVE_WAY
                if leg.attempt != row.attempts and not by_us:
                    self.counts[families.RETRIED_LEGS][leg.role, leg.outcome] += 1
        for name, legs in there.items():
            at = self.instances.get(name)
            if at is None:
                at = self.instances[name] = InstanceAggregate(legs[0].instance)
            at.add(legs)

    def _model(self, name: str | None, path: str) -> str:
        """As it is counted: a name that no engine serves counts as none."""
        if not name or not path:
            return name if name in self._models else ""
        if name not in self._models:
            if len(self._models) >= MOST_MODELS:
                return OTHER
            self._models.add(name)
        return name

    def _itl(self, record: Record) -> Histogram:
        model = self._model(record.call.model, record.path)
        return self.aggregates[record.protocol, model, record.call.route].itl


def _row_of(record: Record) -> Row:
    """Nothing of it is large: neither the call, nor the answer's end, nor what legs were sent."""
    call, committed, ended = record.call, record.committed, record.ended
    token_seconds = None
    if call.streams and committed is not None and ended is not None and record.outcome == "ok":
        token_seconds = _token_seconds(record, ended - committed)
    route = call.path if call.api is None else call.route
    # Half of what Row() takes, which is a function in Python.
    row: Row = _new(
        Row,
        (
            (record.protocol, call.model, route, record.path, record.outcome, call.streams),
            record.started,
            committed,
            ended,
            record.queued_seconds,
            token_seconds,
            record.usage,
            record.attempts,
            record.legs,
            record.decisions,
            record.handed_over,
            record.expired,
            record.resumed,
            record.let_in_again if record.pauses else 0.0,
        ),
    )
    return row


def _token_seconds(record: Record, seconds: float) -> float | None:
    """For one token, on the average, of a stream that took that long after its first byte.

    None if neither its engine says how many tokens there were nor its events were timed.
    """
    usage, gaps = record.usage, record.gaps
    if usage is not None and usage.generated is not None:
        return seconds / (usage.generated - 1) if usage.generated > 1 else None
    return gaps.seconds / gaps.count if gaps is not None and gaps.count else None
