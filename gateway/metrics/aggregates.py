"""Aggregates of calls that are alike, and of legs to one engine.

Of a call that has ended call stats keep a Row: a few numbers and its legs, until they are added up. What
rows say is read of many together: they are sorted by what is counted together once, and no row is looked
at twice.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from operator import attrgetter, sub
from typing import Final, NamedTuple, TypeVar

from pdgate.forwarders.record import DECODE_ONLY, DISAGGREGATED, STAGES, LegRecord, times_of
from pdgate.gateway.metrics.histogram import Histogram
from pdgate.protocols.instance import Instance
from pdgate.protocols.usage import Usage
from pdgate.scheduling.disaggregation import Decision

COLUMNS: Final = ("call", "first_byte", "ttft", "tpot", *STAGES)
_TOKENS: Final = {kind: attrgetter(kind) for kind in ("prompt", "generated", "cached")}


Group = TypeVar("Group", bound=Hashable)


Kind = tuple[str, str | None, str, str, str, bool]
"""Protocol, the model as the call names it, route, path, outcome and whether it streamed: calls
that are alike."""


class Row(NamedTuple):
    """
    Attributes:
        committed: When the client got its first byte.
        token_seconds: For one token of a stream, on the average.
        expired, resumed: How often.
        again: When it was let in after it had given way; 0 for a call that did not.
    """

    kind: Kind
    started: float
    committed: float | None
    ended: float | None
    queued_seconds: float | None
    token_seconds: float | None
    usage: Usage | None
    attempts: int
    legs: list[LegRecord]
    decisions: dict[int, Decision]
    handed_over: bool
    expired: int
    resumed: int
    again: float = 0.0


def by_kind(rows: Iterable[Row]) -> dict[Kind, list[Row]]:
    alike: dict[Kind, list[Row]] = {}
    for row in rows:
        among = alike.get(row.kind)
        if among is None:
            alike[row.kind] = [row]
        else:
            among.append(row)
    return alike


class Aggregate:
    """What is counted of one protocol, model and route.

    Attributes:
        outcomes: (path, outcome) -> calls.
        handovers: Result -> disaggregated calls.
        breaks: Result -> answers whose engine broke off after their first byte.
        seconds: What of (COLUMNS) -> how long it took.
        itl: Seconds between two events of a stream.
        tokens: Kind -> tokens; prompt, cached, generated.
    """

    __slots__ = ("breaks", "handovers", "itl", "outcomes", "seconds", "tokens")

    def __init__(self) -> None:
        self.outcomes: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.handovers: defaultdict[str, int] = defaultdict(int)
        self.breaks: defaultdict[str, int] = defaultdict(int)
        self.seconds = {name: Histogram() for name in COLUMNS}
        self.itl = Histogram()
        self.tokens: defaultdict[str, int] = defaultdict(int)

    def add(self, path: str, outcome: str, streams: bool, rows: Sequence[Row]) -> None:
        """Calls that took this path to this outcome. Column by column, as that takes half the time."""
        (
            _, started, committed, ended, queued, token_seconds, usages, attempts, legs, _,
            handed_over, expired, resumed, again,
        ) = zip(*rows, strict=True)  # fmt: skip
        self.outcomes[path, outcome] += len(rows)
        first_bytes = _between(started, committed)
        self._add_ends(path, outcome, handed_over.count(True), len(first_bytes), len(rows))
        if any(expired):
            self.handovers["expired"] += sum(expired)
        if any(resumed):
            self.breaks["resumed"] += sum(resumed)
        self._add_tokens([usage for usage in usages if usage is not None])
        seconds = self.seconds
        seconds["call"].add(_between(started, ended))
        if streams:
            seconds["ttft"].add(first_bytes.copy())
            seconds["tpot"].add(_known(token_seconds))
        seconds["first_byte"].add(first_bytes)
        stages = zip(*map(times_of, started, queued, attempts, legs, again), strict=True)
        for stage, found in zip(STAGES, stages, strict=True):
            seconds[stage].add(_known(found))

    def _add_ends(
        self, path: str, outcome: str, handed_over: int, committed: int, calls: int
    ) -> None:
        """`handed_over`, `committed`: as many of the calls."""
        if path == DISAGGREGATED:
            _count(self.handovers, "done", handed_over)
            _count(self.handovers, _not_handed_over(outcome), calls - handed_over)
        elif path == DECODE_ONLY:
            _count(self.handovers, "recomputed", committed)
            _count(self.handovers, "failed", calls - committed)
        if outcome not in ("ok", "client_gone"):
            _count(self.breaks, "lost", committed)

    def _add_tokens(self, usages: Sequence[Usage]) -> None:
        for kind, of in _TOKENS.items():
            # That nothing was cached is something else than that it is not said.
            said = [tokens for tokens in map(of, usages) if tokens is not None]
            if said:
                self.tokens[kind] += sum(said)


def _between(earlier: Sequence[float], later: Sequence[float | None]) -> list[float]:
    """Seconds from one to the other, where there is one."""
    try:
        return list(map(sub, later, earlier))
    except TypeError:
        pairs = zip(earlier, later, strict=True)
        return [after - before for before, after in pairs if after is not None]


def _known(found: Iterable[float | None]) -> list[float]:
    return [seconds for seconds in found if seconds is not None]


def _count(counts: dict[str, int], name: str, more: int) -> None:
    """What never happened has no name here."""
    if more:
        counts[name] += more


def _not_handed_over(outcome: str) -> str:
    """A call that ended for reasons of its own says nothing of the hand-over."""
    return "unknown" if outcome in ("client_gone", "engine_rejected") else "failed"


class InstanceAggregate:
    """How long legs to one instance took.

    Attributes:
        seconds: Stage -> how long: `prefill` to the end of prefill's answer; `first_byte` to the
            first byte of the client's answer, and `answer` from there to its end.
    """

    __slots__ = ("instance", "seconds")

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.seconds = {stage: Histogram() for stage in ("prefill", "first_byte", "answer")}

    def add(self, legs: Iterable[LegRecord]) -> None:
        prefill: list[float] = []
        first_byte: list[float] = []
        answer: list[float] = []
        for leg in legs:
            first, ended = leg.first_byte, leg.ended if leg.outcome == "ok" else None
            if first is not None:
                first_byte.append(first - leg.started)
                if ended is not None:
                    answer.append(ended - first)
            elif ended is not None:
                prefill.append(ended - leg.started)
        self.seconds["prefill"].add(prefill)
        self.seconds["first_byte"].add(first_byte)
        self.seconds["answer"].add(answer)


Aggregates = Mapping[tuple[str, str, str], Aggregate]
"""(protocol, model, route) -> what was counted."""


def by_model(aggregates: Aggregates) -> dict[tuple[str, str], Aggregate]:
    """Aggregates by protocol and model, whatever the route."""
    return grouped(aggregates, lambda protocol, model, _: (protocol, model))


def grouped(
    aggregates: Aggregates, group: Callable[[str, str, str], Group]
) -> dict[Group, Aggregate]:
    """One that is alone in its group is not copied, as most are: a model has one route or two."""
    groups: dict[Group, list[Aggregate]] = {}
    for key, aggregate in aggregates.items():
        groups.setdefault(group(*key), []).append(aggregate)
    return {key: among[0] if len(among) == 1 else _together(among) for key, among in groups.items()}


def _together(aggregates: list[Aggregate]) -> Aggregate:
    """Their rows have been added up."""
    sum_ = Aggregate()
    for one in aggregates:
        for path_and_outcome, calls in one.outcomes.items():
            sum_.outcomes[path_and_outcome] += calls
        for counts, more in (
            (sum_.handovers, one.handovers),
            (sum_.breaks, one.breaks),
            (sum_.tokens, one.tokens),
        ):
            for name, count in more.items():
                counts[name] += count
        for name, histogram in one.seconds.items():
            sum_.seconds[name].join(histogram)
        sum_.itl.join(one.itl)
    return sum_
