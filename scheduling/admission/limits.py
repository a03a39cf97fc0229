"""Limits of what an operator lets in; None is no limit.

Those of engines hold for all processes of a gateway together; of places to wait each process has its
part (`shared_by`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final, Self

from pdgate.scheduling.pipeline.scorers import IN_TIME
from pdgate.scheduling.policy_context import Targets

STEP_IN_TIME: Final = 0.95
"""Of the target for a token, what a step may take when a call begins: answers that are there get longer, and some
steps do. In simulations of chats 84 % were in time with 0.9, 86 % with 0.95 and 73 % with 0.98; of agents 83, 84 and 85 %."""

READ_AHEAD: Final = 0.2
"""Of the target for a first token, what each prefill engine may have to read where calls wait and nothing is said of it."""

WITHOUT_END: Final = 1e9
"""Seconds, and calls: no call is turned away for a target alone."""


@dataclass(frozen=True, slots=True)
class Limits:
    """
    Attributes:
        prefill_concurrency: At one prefill engine at a time.
        decode_concurrency: At one decode (or plain) engine at a time, counted from the call's start: a
            prefill that no decode engine will take is not begun.
        kv_free: Share of a decode engine's KV pages, 0..1, below which it begins no call.
        waiting: Calls that may wait for one model.
        wait_seconds: The longest that one may.
        prefill_seconds: What a prefill engine may have to read; while all have more, calls wait here, and
            those that can be in time go before those that are late.
        late_share: Of the time for which prompts are read that begin, what may be of late calls while
            others wait that can be in time.
        step_seconds: What a step of a decode engine may take with one answer more; while all would take
            longer, calls wait here.
        in_time_seconds: Within which a prompt is to be read for a call to be in time.
        ttft_seconds: A call of which the prompt is expected to be read later than that, wherever it
            goes, is not begun.
        give_way: How often a running call of low urgency may give way to one that would be late; 0 for never.
        target_seconds: Within which the prompt of a call is to be read, or others give way to it.
    """

    prefill_concurrency: int | None = None
    decode_concurrency: int | None = None
    kv_free: float | None = None
    waiting: int = 1000
    wait_seconds: float = 30.0
    ttft_seconds: float | None = None
    prefill_seconds: float | None = None
    late_share: float = 0.05
    step_seconds: float | None = None
    in_time_seconds: float = inf
    give_way: int = 0
    target_seconds: float = inf

    @classmethod
    def of(cls, given: Mapping[str, Any], targets: Targets, kept: Targets | None = None) -> Self:
        """Limits that are given, with what follows from the targets where calls are to wait in the gateway.

        Args:
            given: Attribute -> its value; `prefill_seconds` of 0 for calls to wait at engines.
            kept: Targets for which calls wait here unless `prefill_seconds` says for what; each without end where it
                is none. No call is turned away for them alone, with no other limit. None if calls do not wait.
        """
        given = dict(given)
        if given.get("prefill_seconds") == 0:
            del given["prefill_seconds"]
            kept = None
        limits = cls(**given)
        if limits.ttft_seconds is not None:
            # A call that has waited for that long is later than that.
            limits = replace(limits, wait_seconds=min(limits.wait_seconds, limits.ttft_seconds))
        if limits.prefill_seconds is not None:
            kept = None
        elif kept is not None and not limits.any:
            most = {"waiting": int(WITHOUT_END), "wait_seconds": WITHOUT_END}
            limits = cls(**(most | given))
        return limits.in_gateway(targets, kept)

    def in_gateway(self, targets: Targets, kept: Targets | None = None) -> Self:
        """Limits with what follows from the targets, where calls are to wait in the gateway; `kept` as of `of`.

        Only what waits here can be late before it has begun, so giving way makes calls wait here if no limit does.
        """
        in_time = IN_TIME * targets.ttft_seconds
        limits = replace(self, target_seconds=in_time) if self.give_way else self
        prefill_seconds, step_seconds = self.prefill_seconds, STEP_IN_TIME * targets.tpot_seconds
        if self.give_way and not self.any:
            kept = targets
        if kept is not None:
            prefill_seconds = READ_AHEAD * kept.ttft_seconds
            step_seconds = STEP_IN_TIME * kept.tpot_seconds
        if prefill_seconds is None:
            return limits
        return replace(
            limits,
            prefill_seconds=prefill_seconds if prefill_seconds < inf else None,
            in_time_seconds=in_time,
            step_seconds=step_seconds if step_seconds < inf else None,
        )

    @property
    def places(self) -> tuple[float, float] | None:
        """Calls that one engine may read at a time, and answer; None without such a limit."""
        prefill, decode = self.prefill_concurrency, self.decode_concurrency
        if prefill is None and decode is None:
            return None
        return inf if prefill is None else prefill, inf if decode is None else decode

    @property
    def any(self) -> bool:
        """Whether anything can make a call wait, or turn it away."""
        found = (
            self.prefill_concurrency, self.decode_concurrency, self.kv_free, self.ttft_seconds,
            self.prefill_seconds, self.step_seconds,
        )  # fmt: skip
        return any(limit is not None for limit in found)

    def shared_by(self, processes: int) -> Self:
        """Limits for each of several processes: its part is rounded up, as none may be left without."""
        return replace(self, waiting=-(-self.waiting // processes))
