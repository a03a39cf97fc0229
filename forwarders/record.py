"""Record of one call: which legs, when, how they ended.

Written by execution as it goes, read when the call is over: metrics, the log line, the
trace and "where did this call run" all come from here. Times are monotonic seconds.
"""

from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Iterable, Mapping
from math import inf
from time import monotonic
from typing import Any, Final, Protocol

from pdgate.forwarders.base import Answer
from pdgate.protocols.call import Call, Headers, Raw
from pdgate.protocols.errors import GatewayError
from pdgate.protocols.instance import ENCODE, PREFILL, Instance, Role
from pdgate.protocols.usage import Usage, counts_in, usage_in
from pdgate.scheduling.decision_trace import DecisionTrace
from pdgate.scheduling.disaggregation import Decision, Taken

DISAGGREGATED, LOCAL, PREFILL_ONLY, PLAIN = "disaggregated", "local", "prefill_only", "plain"
DECODE_ONLY = "decode_only"

STAGES: Final = (
    "encode", "queue", "choose_prefill", "prefill", "choose_decode", "kv_wait", "decode_first_byte", "decode",
)  # fmt: skip
"""Of a call, in the order of time."""

Times = tuple[
    float | None,
    float | None,
    float | None,
    float | None,
    float | None,
    float | None,
    float | None,
    float | None,
]
"""Seconds of each of STAGES."""


class Trace(Protocol):
    """The trace of one call that is sampled.

    Attributes:
        id: 32 hexadecimal digits.
    """

    id: str

    def headers(self, leg: "LegRecord") -> Mapping[str, str]:
        """What tells an engine that its work is a part of this trace."""

    def end(self, record: "Record") -> None:
        """The record has ended."""


class Gaps(Protocol):
    """The time between events of one stream.

    Attributes:
        seconds, count: Of all gaps together.
    """

    seconds: float
    count: int

    def of(self, answer: Answer) -> Answer:
        """The answer, whose pieces are timed and all of which passes."""


class SessionPart(Protocol):
    """What is said of a realtime session beside."""

    def as_json(self) -> Mapping[str, Any]: ...


class LegRecord:
    """One request to one engine.

    Attributes:
        outcome: "running", "ok", "cancelled", or the code of the error.
        usage: Of an answer that was read as a whole, as the engine wrote it.
        span: Its id in the trace of the call; empty without one.
    """

    # Slots, and no defaults of the class, which take ten times as long to read.
    __slots__ = (
        "attempt", "clock", "ended", "first_byte", "instance", "outcome", "role", "span",
        "started", "usage",
    )  # fmt: skip

    def __init__(
        self,
        role: Role,
        instance: Instance,
        attempt: int,
        clock: Callable[[], float],
    ) -> None:
        self.role = role
        self.instance = instance
        self.attempt = attempt
        self.clock = clock
        self.first_byte: float | None = None
        self.ended: float | None = None
        self.usage: Any = None
        self.span = ""
        self.outcome = "running"
        self.started = clock()

    def end(self, error: BaseException | None) -> None:
        # Not as a method, which it is none: until Python 3.12 that is a long way to find out.
        clock = self.clock
        self.ended = clock()
        if error is None:
            self.outcome = "ok"
        elif isinstance(error, GatewayError):
            self.outcome = error.code or type(error).__name__
        elif isinstance(error, CancelledError):
            self.outcome = "cancelled"
        else:
            self.outcome = "internal_error"


class Record:
    """The life of one call.

    Attributes:
        path: DISAGGREGATED, LOCAL (a decode engine did it all, as was decided), DECODE_ONLY (it
            did, as no prefill engine could), PREFILL_ONLY, PLAIN; "" before it is known.
        choices: (attempt, why this engine), if the operator wants them.
        decisions: Attempt -> whether to split; none where only plain engines are.
        handed_over: Decode answered well with the KV that prefill was asked to leave for it.
        queued_seconds: How long it waited until engines had room; None if no limits are set.
        key: The name of the caller's API key; "" where none is asked for.
        expired: Attempts that ended because prefill might no longer hold the KV.
        headers: More of them that the client gets with its answer.
        committed: The first byte is on its way to the client: no retry any more.
        end_of_answer: The last bytes that the client got, as long as they are of use: of a stream
            at least the last event but "[DONE]", of another answer all of it, if it is short.
        usage_said: By a whole answer, raw, where it was read before it went out: empty for none.
        usage: What the call took, when it is over, as far as engines said it.
        trace: None where the call is not sampled.
        gaps: None where they are not measured.
        session: None for a call that is none, and for a session that is not open yet.
        pauses: Of one that gave way to more urgent ones, when each pause began and ended.
        made_way: How many calls gave way to it.
        resumed: How often another engine went on with an answer that had begun.
        not_resumed: Why none could, or could have; "" if one may, or if no engine is to.
        outcome: "ok", "client_gone", or the code of the error that the client got.
    """

    __slots__ = (
        "attempts", "call", "choices", "clock", "committed", "decisions", "end_of_answer", "ended",
        "expired", "gaps", "handed_over", "headers", "key", "legs", "made_way", "mode", "not_resumed", "outcome",
        "path", "pauses", "protocol", "queued_seconds", "resumed", "session", "started", "status", "trace",
        "usage", "usage_said",
    )  # fmt: skip

    def __init__(self, call: Call, clock: Callable[[], float] = monotonic) -> None:
        self.call = call
        self.clock = clock
        self.started = clock()
        self.ended: float | None = None
        self.protocol = ""
        self.mode = ""
        self.path = ""
        self.choices: tuple[tuple[int, DecisionTrace], ...] = ()
        self.decisions: dict[int, Decision] = {}
        self.legs: list[LegRecord] = []
        self.handed_over = False
        self.expired = 0
        self.queued_seconds: float | None = None
        self.key = ""
        self.headers: Headers = ()
        self.committed: float | None = None
        self.end_of_answer = b""
        self.usage: Usage | None = None
        self.usage_said: Raw | None = None
        self.trace: Trace | None = None
        self.gaps: Gaps | None = None
        self.session: SessionPart | None = None
        self.pauses: tuple[tuple[float, float], ...] = ()
        self.made_way = 0
        self.resumed = 0
        self.not_resumed = ""
        self.status = 0
        self.outcome = "running"
        self.attempts = 0

    def leg(self, role: Role, instance: Instance) -> LegRecord:
        leg = LegRecord(role, instance, self.attempts, self.clock)
        self.legs.append(leg)
        return leg

    @property
    def why_local(self) -> str:
        """The reason for LOCAL."""
        decision = self.decisions.get(self.attempts)
        return decision.reason if decision and decision.taken is Taken.LOCAL else ""

    @property
    def joined_line(self) -> float:
        """When it began to wait for its turn: when it came, or its media had been encoded."""
        joined = self.started
        for leg in self.legs:
            if leg.attempt == 1 and leg.role is ENCODE and leg.ended is not None:
                joined = max(joined, leg.ended)
        return joined

    @property
    def let_in_again(self) -> float:
        """When it was, after it had given way; 0 for a call that did not."""
        return self.pauses[-1][1] if self.pauses else 0.0

    @property
    def paused_seconds(self) -> float:
        return sum(until - since for since, until in self.pauses)

    @property
    def is_answering(self) -> bool:
        """The answer of this attempt has begun, though not always at the client."""
        return any(leg.first_byte is not None for leg in self.legs if leg.attempt == self.attempts)

    def _count(self) -> None:
        """Reads what the call took out of the answers, and lets go of the legs'."""
        usage = None
        if self.usage_said is not None:
            # Empty where none was said, and as a piece of the answer it keeps all of it.
            if counted := bytes(self.usage_said):
                usage = counts_in(counted)
            self.usage_said = None
        elif self.end_of_answer:
            usage = usage_in(self.end_of_answer)
        for leg in self.legs:
            said = leg.usage
            if said is None:
                continue
            # As a piece of an answer it keeps all of it.
            leg.usage = None
            if leg.attempt != self.attempts:
                continue
            # What decode calls cached is, of a split call, what prefill handed over.
            counts = bytes(said)
            # As in openai.aborted, `in` would be three times as dear.
            if usage is not None and usage.cached is None and counts.find(b"cached") < 0:
                continue
            if usage is not None and (self.resumed or self.pauses):
                # What the last engines read is the answer's beginning as well.
                continue
            read = counts_in(counts)
            if read is not None:
                usage = Usage(read.prompt, None if usage is None else usage.generated, read.cached)
        self.usage = usage

    def end(self, outcome: str, status: int) -> None:
        if self.ended is None:
            clock = self.clock
            self.ended, self.outcome, self.status = clock(), outcome, status
            self._count()

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.call.id,
            "attempt_id": self.call.attempt_id,
            "api": self.call.route,
            "model": self.call.model,
            "shared": self.call.shared,
            "key": self.key,
            "trace_id": None if self.trace is None else self.trace.id,
            "protocol": self.protocol,
            "mode": self.mode,
            "path": self.path,
            "why_local": self.why_local,
            "kv": "handed_over" if self.handed_over else "none",
            "gave_way_ms": [
                [_ms(since - self.started), _ms(until - self.started)]
                for since, until in self.pauses
            ],
            "made_way": self.made_way,
            "resumed": self.resumed,
            "not_resumed": self.not_resumed,
            "status": self.status,
            "outcome": self.outcome,
            "attempts": [self._attempt_json(number) for number in range(1, self.attempts + 1)],
            "stages_ms": self.stages_ms(),
            "tokens": None if self.usage is None else self.usage.as_json(),
            "session": None if self.session is None else self.session.as_json(),
        }

    def times(self) -> Times:
        return times_of(
            self.started, self.queued_seconds, self.attempts, self.legs, self.let_in_again
        )

    def stages(self) -> dict[str, float]:
        """The times that there are, by their names."""
        named = zip(STAGES, self.times(), strict=True)
        return {stage: seconds for stage, seconds in named if seconds is not None}

    def stages_ms(self) -> dict[str, float]:
        """The same in milliseconds; with the time to the client's first byte, and the whole."""
        stages = {stage: _ms(seconds) for stage, seconds in self.stages().items()}
        if self.committed is not None:
            stages["first_byte"] = _ms(self.committed - self.started)
        if self.ended is not None:
            stages["total"] = _ms(self.ended - self.started)
        return stages

    def _attempt_json(self, number: int) -> dict[str, Any]:
        legs = [self._leg_json(leg) for leg in self.legs if leg.attempt == number]
        decision = self.decisions.get(number)
        return {"decision": _decision_json(decision) if decision else None, "legs": legs}

    def _leg_json(self, leg: LegRecord) -> dict[str, Any]:
        return {
            "role": leg.role.value,
            "instance": leg.instance.id,
            "started_ms": _ms(leg.started - self.started),
            "ended_ms": None if leg.ended is None else _ms(leg.ended - self.started),
            "outcome": leg.outcome,
        }


Deliver = Callable[[Answer, Record], Awaitable[None]]
"""Relays the answer to the client; notes in the record when the first byte is committed."""


def times_of(
    started: float,
    queued: float | None,
    attempt: int,
    legs: Iterable[LegRecord],
    again: float = 0.0,
) -> Times:
    """Seconds of each of STAGES in the last attempt; None where it came to no good end.

    kv_wait, of split calls: from prefill's end to decode's first byte, the choice of decode
    included where that comes between the two. `again`: when it was let in after it had given way.
    The media of the first attempt are encoded before the queue.
    """
    began = max(again, started if queued is None else started + queued)
    prefill: LegRecord | None = None
    answer: LegRecord | None = None
    encoded: float | None = None
    media_asked, encoded_until = inf, 0.0
    for leg in legs:
        if leg.attempt != attempt:
            began = max(began, leg.ended or 0.0)
        elif leg.role is ENCODE:
            # Media are asked for together, before anything else is chosen.
            media_asked = min(media_asked, leg.started)
            if leg.ended is not None:
                encoded_until = max(encoded_until, leg.ended)
                encoded = encoded_until - media_asked
        elif leg.role is not PREFILL:
            answer = leg
        elif prefill is None:
            prefill = leg
    if encoded is not None:
        waits = queued if attempt == 1 and queued is not None else 0.0
        began = max(began, encoded_until + waits)
    chosen = took = read = chosen_decode = waited = first = answered = None
    if prefill is not None:
        sent = prefill.started
        chosen = sent - began
        if prefill.outcome == "ok" and prefill.ended is not None:
            read = prefill.ended
            took = read - sent
    if answer is not None:
        asked, begun = answer.started, answer.first_byte
        if prefill is None:
            chosen_decode = asked - began
        elif read is not None and asked >= read:
            chosen_decode = asked - read
        if begun is not None:
            first = begun - asked
            if read is not None:
                waited = begun - read if begun > read else 0.0
            if answer.outcome == "ok" and answer.ended is not None:
                answered = answer.ended - begun
    return encoded, queued, chosen, took, chosen_decode, waited, first, answered


def _decision_json(decision: Decision) -> dict[str, Any]:
    expected = {
        "split": decision.split_seconds,
        "local": decision.local_seconds,
        "held_up": decision.held_up_seconds,
    }
    return {
        "taken": decision.taken.value,
        "reason": decision.reason,
        "expected_ms": {way: _ms(time) for way, time in expected.items() if time is not None},
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
