"""How near an engine is to what it should not exceed: 1 is there, 0 is idle.

    prefill   whether it reads: on the average of many looks, the share of its time   / FULL
              the wait that is predicted for what it has to read, if that is more     / target
    decode    a step, as predicted for what it has                                    / target
              its KV, if that is more                                                 / FULL
              and of its calls, those that wait for a turn

Neither wait nor step grows in proportion to the calls. Reading hardly waits while there is time
left, and without end when there is none: so what counts first is the time that is left. And with
more answers steps are longer, so that answers stay longer, and there are more of them: for r times
as many calls a step of `base + load` becomes

    base / (1 - r * load / (base + load))
"""

from dataclasses import dataclass
from math import inf
from typing import Final

from pdgate.protocols.instance import Role
from pdgate.scheduling.account import calls_there, unread_tokens_there
from pdgate.scheduling.candidate import Candidate
from pdgate.scheduling.surroundings import Targets

FULL: Final = 0.85
"""Share of an engine's time beyond which prompts begin to queue, and of its KV beyond which answers
begin to push each other out."""

TOKENS_PER_SECOND: Final = 10_000.0
"""What prefill is taken to read of prompts, until it has shown it."""

MANY_CALLS: Final = 64
"""With so many, decode is taken to be at its target, until it has shown how long its steps are."""


@dataclass(frozen=True, slots=True)
class Pressure:
    """
    Attributes:
        base: What there is with next to no calls.
        load: What goes with them.
    """

    base: float = 0.0
    load: float = 0.0

    @property
    def now(self) -> float:
        return self.base + self.load

    def with_calls(self, times: float) -> float:
        """With so many times the calls; infinite for what could not be."""
        if not self.base:
            return self.load * times
        left = 1 - times * self.load / (self.base + self.load)
        return self.base / left if left > 0 else inf


NONE: Final = Pressure()


def pressure(candidate: Candidate, side: Role, targets: Targets) -> Pressure:
    """`side`: PREFILL or DECODE, whichever it serves."""
    if side is Role.PREFILL:
        return _reading(candidate, targets)
    kv, steps = _kv(candidate), _steps(candidate, targets)
    return kv if kv.now > steps.now else steps


def mean(several: list[Pressure]) -> Pressure:
    """NONE of nobody."""
    if not several:
        return NONE
    return Pressure(
        sum(one.base for one in several) / len(several),
        sum(one.load for one in several) / len(several),
    )


def _reading(candidate: Candidate, targets: Targets) -> Pressure:
    unread = unread_tokens_there(candidate)
    if not unread:
        return NONE
    expected = candidate.predicts.prefill_seconds(unread, candidate.unread_squares)
    wait_seconds = unread / TOKENS_PER_SECOND if expected is None else expected
    return Pressure(0.0, max(1 / FULL, wait_seconds / targets.ttft_seconds))


def _kv(candidate: Candidate) -> Pressure:
    status = candidate.status
    if status is None or status.kv_free is None:
        return NONE
    return Pressure(0.0, (1 - status.kv_free) / FULL)


def _steps(candidate: Candidate, targets: Targets) -> Pressure:
    calls = calls_there(candidate)
    if not calls:
        return NONE
    status = candidate.status
    waiting = 0.0
    if status is not None and status.waiting:
        waiting = status.waiting / (status.waiting + (status.running or 0))
    context_tokens = max(0, candidate.tokens + candidate.beyond.kv_tokens)
    step = candidate.predicts.step_seconds(calls, context_tokens)
    least = candidate.predicts.step_seconds(1, 0)
    if step is None or least is None:
        return Pressure(0.0, calls / MANY_CALLS + waiting)
    target = targets.tpot_seconds
    return Pressure(least / target, (step - least) / target + waiting)
