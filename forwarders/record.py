"""What happened to one call: which legs, when, how they ended.

Written by execution as it goes, read when the call is over: metrics, the log line, the
trace and "where did this call run" all come from here. Times are monotonic seconds.
"""

from asyncio import CancelledError
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import Any, Self

from pdgate.protocols.call import Call
from pdgate.protocols.errors import GatewayError
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.disaggregation import Decision, Taken

Report = Callable[[Instance, GatewayError | None], None]

DISAGGREGATED, LOCAL, PREFILL_ONLY, PLAIN = "disaggregated", "local", "prefill_only", "plain"
DECODE_ONLY = "decode_only"


class LegRecord:
    """One request to one engine; as a block, it ends when and how the block does.

    Attributes:
        outcome: "running", "ok", "cancelled", or the code of the error.
        report: Told of every end but a cancellation.
    """

    def __init__(
        self,
        role: Role,
        instance: Instance,
        attempt: int,
        clock: Callable[[], float],
        report: Report,
    ) -> None:
        self.role = role
        self.instance = instance
        self.attempt = attempt
        self.clock = clock
        self.report = report
        self.started = clock()
        self.first_byte: float | None = None
        self.ended: float | None = None
        self.outcome = "running"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.ended = self.clock()
        if error is None:
            self.outcome = "ok"
            self.report(self.instance, None)
        elif isinstance(error, GatewayError):
            self.outcome = error.code or type(error).__name__
            self.report(self.instance, error)
        elif isinstance(error, CancelledError):
            self.outcome = "cancelled"
        else:
            self.outcome = "internal_error"


class Record:
    """The life of one call.

    Attributes:
        path: DISAGGREGATED, LOCAL (a decode engine did it all, as was decided), DECODE_ONLY (it
            did, as no prefill engine could), PREFILL_ONLY, PLAIN; "" before it is known.
        decisions: Attempt -> whether to split; none where only plain engines are.
        handed_over: Decode answered well with the KV that prefill was asked to leave for it.
        queued_seconds: How long it waited until engines had room; None if no limits are set.
        key: The name of the caller's API key; "" where none is asked for.
        expired: Attempts that ended because prefill might no longer hold the KV.
        committed: The first byte is on its way to the client: no retry any more.
        resumed: How often another engine went on with an answer that had begun.
        not_resumed: Why none could, or could have; "" if one may, or if nobody is to.
        outcome: "ok", "client_gone", or the code of the error that the client got.
    """

    # Most calls leave most of these as they are.
    ended: float | None = None
    protocol: str = ""
    mode: str = ""
    path: str = ""
    handed_over: bool = False
    expired: int = 0
    queued_seconds: float | None = None
    key: str = ""
    committed: float | None = None
    resumed: int = 0
    not_resumed: str = ""
    status: int = 0
    outcome: str = "running"
    attempts: int = 0

    def __init__(self, call: Call, clock: Callable[[], float] = monotonic) -> None:
        self.call = call
        self.clock = clock
        self.started = clock()
        self.decisions: dict[int, Decision] = {}
        self.legs: list[LegRecord] = []

    def leg(self, role: Role, instance: Instance, report: Report) -> LegRecord:
        leg = LegRecord(role, instance, self.attempts, self.clock, report)
        self.legs.append(leg)
        return leg

    @property
    def why_local(self) -> str:
        """The reason for LOCAL."""
        decision = self.decisions.get(self.attempts)
        return decision.reason if decision and decision.taken is Taken.LOCAL else ""

    @property
    def is_answering(self) -> bool:
        """The answer of this attempt has begun, though not always at the client."""
        return any(leg.first_byte is not None for leg in self.legs if leg.attempt == self.attempts)

    def since_prefill(self) -> float:
        """Seconds since prefill's leg of this attempt ended; 0 while it runs."""
        ended = [leg.ended for leg in self.legs if leg.role is Role.PREFILL]
        return self.clock() - ended[-1] if ended and ended[-1] is not None else 0.0

    def end(self, outcome: str, status: int) -> None:
        if self.ended is None:
            self.ended, self.outcome, self.status = self.clock(), outcome, status

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.call.id,
            "attempt_id": self.call.attempt_id,
            "model": self.call.model,
            "key": self.key,
            "protocol": self.protocol,
            "mode": self.mode,
            "path": self.path,
            "why_local": self.why_local,
            "kv": "handed_over" if self.handed_over else "none",
            "resumed": self.resumed,
            "not_resumed": self.not_resumed,
            "status": self.status,
            "outcome": self.outcome,
            "attempts": [self._attempt_json(number) for number in range(1, self.attempts + 1)],
            "stages_ms": self.stages_ms(),
        }

    @property
    def _began(self) -> float:
        """When there was room for it."""
        return self.started + (self.queued_seconds or 0.0)

    def stages_ms(self) -> dict[str, float]:
        """How long each stage of the last attempt took; a stage that was not is left out."""
        stages: dict[str, float] = {}
        if self.queued_seconds is not None:
            stages["queue"] = _ms(self.queued_seconds)
        last = [leg for leg in self.legs if leg.attempt == self.attempts]
        prefill = next((leg for leg in last if leg.role is Role.PREFILL), None)
        answer = next((leg for leg in reversed(last) if leg.role is not Role.PREFILL), None)
        if last:
            earlier = (leg.ended or 0.0 for leg in self.legs if leg.attempt < self.attempts)
            stages["choose"] = _ms(last[0].started - max(earlier, default=self._began))
        if prefill and prefill.ended is not None:
            stages["prefill"] = _ms(prefill.ended - prefill.started)
        if prefill and answer and prefill.ended is not None and answer.started > prefill.started:
            stages["choose_decode"] = _ms(max(0.0, answer.started - prefill.ended))
        if answer and answer.first_byte is not None:
            stages["decode_first_byte"] = _ms(answer.first_byte - answer.started)
        if answer and answer.ended is not None and answer.first_byte is not None:
            stages["decode"] = _ms(answer.ended - answer.first_byte)
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
