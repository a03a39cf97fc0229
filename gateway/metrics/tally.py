"""What is counted of calls that are alike, and of legs to one engine."""

from collections import defaultdict
from typing import Final

from pdgate.forwarders.record import STAGES
from pdgate.gateway.metrics.histogram import Histogram
from pdgate.protocols.instance import Instance

COLUMNS: Final = ("call", "first_byte", "ttft", "tpot", *STAGES)


class Tally:
    """What is counted of one protocol, model and route.

    Attributes:
        outcomes: (path, outcome) -> calls.
        handovers: Result -> disaggregated calls.
        breaks: Result -> answers whose engine broke off after their first byte.
        seconds: What of (COLUMNS) -> how long it took.
        itl: Seconds between two events of a stream.
        tokens: Kind -> tokens; prompt, cached, generated.
        rows: Of calls that are not yet in `seconds`.
    """

    __slots__ = ("breaks", "handovers", "itl", "outcomes", "rows", "seconds", "tokens")

    def __init__(self) -> None:
        self.outcomes: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.handovers: defaultdict[str, int] = defaultdict(int)
        self.breaks: defaultdict[str, int] = defaultdict(int)
        self.seconds = {name: Histogram() for name in COLUMNS}
        self.itl = Histogram()
        self.tokens: defaultdict[str, int] = defaultdict(int)
        self.rows: list[tuple[float | None, ...]] = []

    def add_up(self) -> None:
        rows, self.rows = self.rows, []
        for histogram, column in zip(self.seconds.values(), zip(*rows, strict=True), strict=False):
            histogram.add([seconds for seconds in column if seconds is not None])


class InstanceTally:
    """How long legs to one instance took.

    Attributes:
        seconds: Stage -> how long: `prefill` to the end of prefill's answer; `first_byte` to the
            first byte of the client's answer, and `answer` from there to its end.
        rows: Started, first byte and good end of legs that are not yet in `seconds`.
    """

    __slots__ = ("instance", "rows", "seconds")

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.seconds = {stage: Histogram() for stage in ("prefill", "first_byte", "answer")}
        self.rows: list[tuple[float, float | None, float | None]] = []

    def add_up(self) -> None:
        rows, self.rows = self.rows, []
        seconds = self.seconds
        seconds["prefill"].add([e - s for s, f, e in rows if e is not None and f is None])
        seconds["first_byte"].add([f - s for s, f, _ in rows if f is not None])
        seconds["answer"].add([e - f for _, f, e in rows if e is not None and f is not None])
