"""Pressure: how near an engine is to what it should not exceed: 1 is there, 0 is idle.

    prefill   use    whether it reads: on the average of many looks, the share of its time   / FULL
                     the wait that is predicted for what it has to read, if that is more     / target
    decode    step   as it is predicted for what it has                                      / target
              use    its KV                                                                  / FULL
                     and of its calls, those that wait for a turn

What is nearer to its end counts. With more calls use grows in proportion: reading hardly waits while
there is time left, and without end when there is none, so what counts first is the time. A step
does not: with more answers it is longer, so that answers stay longer, and there are more of them.
For r times as many calls a step of `base + load` becomes

    base / (1 - r * load / (base + load))
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from pdgate.protocols.instance import Role
from pdgate.scheduling.account import context_tokens_of, unread_tokens_there
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.policy_context import Targets

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
        use: Of time, KV or places in a queue.
        base: Of a step, what there is with next to no calls.
        load: Of a step, what goes with them.
    """

    use: float = 0.0
    base: float = 0.0
    load: float = 0.0

    @property
    def now(self) -> float:
        return max(self.use, self.base + self.load)

    def with_calls(self, times: float) -> float:
        """Pressure of so many times the calls; infinite for what could not be."""
        step = self.base + self.load
        if step and times != 1:
            left = 1 - times * self.load / step
            then = self.base / left if left > 0 else inf
            # Where there is next to no base, what is left of a step is what rounding has left.
            step = min(step, then) if times < 1 else max(step, then)
        return max(self.use * times, step)

    def towards(self, other: "Pressure", share: float) -> "Pressure":
        """Pressure on the way from this to the other: 0 is here, 1 there."""
        return Pressure(
            self.use + share * (other.use - self.use),
            self.base + share * (other.base - self.base),
            self.load + share * (other.load - self.load),
        )


NONE: Final = Pressure()


def pressure(endpoint: Endpoint, side: Role, targets: Targets) -> Pressure:
    """`side`: PREFILL or DECODE, whichever it serves."""
    if side is Role.PREFILL:
        return _reading(endpoint, targets)
    return _making(endpoint, targets)


def mean(several: Sequence[Pressure]) -> Pressure:
    """NONE if there are none."""
    if not several:
        return NONE
    count = len(several)
    return Pressure(
        sum(one.use for one in several) / count,
        sum(one.base for one in several) / count,
        sum(one.load for one in several) / count,
    )


def _reading(endpoint: Endpoint, targets: Targets) -> Pressure:
    unread = unread_tokens_there(endpoint)
    if not unread:
        return NONE
    expected = endpoint.latency.prefill_seconds(unread, endpoint.unread_squares)
    wait_seconds = unread / TOKENS_PER_SECOND if expected is None else expected
    return Pressure(max(1 / FULL, wait_seconds / targets.ttft_seconds))


def _making(endpoint: Endpoint, targets: Targets) -> Pressure:
    use = 0.0
    status = endpoint.status
    if status is not None:
        if status.kv_free is not None:
            use = (1 - status.kv_free) / FULL
        if status.waiting:
            use += status.waiting / (status.waiting + (status.running or 0))
    # Those that are expected there, but still with prefill, do not make its steps longer.
    batch = endpoint.answering + endpoint.beyond.calls
    if not batch:
        return Pressure(use)
    step = endpoint.latency.step_seconds(batch, context_tokens_of(endpoint, batch))
    least = endpoint.latency.step_seconds(1, 0)
    if step is None or least is None:
        return Pressure(max(use, batch / MANY_CALLS))
    target = targets.tpot_seconds
    return Pressure(use, least / target, (step - least) / target)
