"""What is counted of calls that are alike, and of legs to one engine."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from pdgate.forwarders.record import DECODE_ONLY, DISAGGREGATED, STAGES, LegRecord, times_of
from pdgate.gateway.metrics.ended import Row
from pdgate.gateway.metrics.histogram import Histogram
from pdgate.protocols.instance import Instance
from pdgate.protocols.usage import Usage

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
    """

    __slots__ = ("breaks", "handovers", "itl", "outcomes", "seconds", "tokens")

    def __init__(self) -> None:
        self.outcomes: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.handovers: defaultdict[str, int] = defaultdict(int)
        self.breaks: defaultdict[str, int] = defaultdict(int)
        self.seconds = {name: Histogram() for name in COLUMNS}
        self.itl = Histogram()
        self.tokens: defaultdict[str, int] = defaultdict(int)

    def add(self, path: str, outcome: str, rows: Sequence[Row]) -> None:
        """Calls that took this path to this outcome."""
        self.outcomes[path, outcome] += len(rows)
        columns: dict[str, list[float]] = {name: [] for name in COLUMNS}
        call, first_byte, ttft, tpot, *stages = columns.values()
        queue, choose_prefill, prefill, choose_decode, kv_wait, decode_first_byte, decode = stages
        committed_ones = 0
        for (
            _, started, committed, ended, queued_seconds, streams, token_seconds, usage, attempts,
            legs, _, handed_over, expired, resumed,
        ) in rows:  # fmt: skip
            if ended is not None:
                call.append(ended - started)
            if committed is not None:
                committed_ones += 1
                first_byte.append(committed - started)
                if streams:
                    ttft.append(committed - started)
            if token_seconds is not None:
                tpot.append(token_seconds)
            if usage is not None:
                self._add_tokens(usage)
            queued, chosen, read, chosen_decode, waited, first, answered = times_of(
                started, queued_seconds, attempts, legs
            )
            if queued is not None:
                queue.append(queued)
            if chosen is not None:
                choose_prefill.append(chosen)
            if read is not None:
                prefill.append(read)
            if chosen_decode is not None:
                choose_decode.append(chosen_decode)
            if waited is not None:
                kv_wait.append(waited)
            if first is not None:
                decode_first_byte.append(first)
            if answered is not None:
                decode.append(answered)
            if path == DISAGGREGATED:
                self.handovers["done" if handed_over else _not_handed_over(outcome)] += 1
            if expired:
                self.handovers["expired"] += expired
            if resumed:
                self.breaks["resumed"] += resumed
        if path == DECODE_ONLY:
            self._add_stand_ins(committed_ones, len(rows))
        if committed_ones and outcome not in ("ok", "client_gone"):
            self.breaks["lost"] += committed_ones
        for name, seconds in columns.items():
            if seconds:
                self.seconds[name].add(seconds)

    def _add_tokens(self, usage: Usage) -> None:
        tokens = self.tokens
        if usage.prompt is not None:
            tokens["prompt"] += usage.prompt
        if usage.generated is not None:
            tokens["generated"] += usage.generated
        # That nothing was cached is something else than that nobody says it.
        if usage.cached is not None:
            tokens["cached"] += usage.cached

    def _add_stand_ins(self, committed: int, calls: int) -> None:
        """Of decode engines that read the prompt as no prefill engine could."""
        if committed:
            self.handovers["recomputed"] += committed
        if committed < calls:
            self.handovers["failed"] += calls - committed


def _not_handed_over(outcome: str) -> str:
    """A call that ended for reasons of its own says nothing of the hand-over."""
    return "unknown" if outcome in ("client_gone", "engine_rejected") else "failed"


class InstanceTally:
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
