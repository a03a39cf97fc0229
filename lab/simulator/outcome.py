"""Outcome of one call."""

from dataclasses import dataclass

from pdgate.lab.simulator.trace import TraceCall
from pdgate.scheduling.policy_context import Targets


@dataclass(slots=True)
class SimulatedOutcome:
    """Times in seconds since the simulation began.

    Attributes:
        attempts: 1, unless engines failed.
        local: Decode read the prompt itself.
        prefill, decode: Ids of those that were chosen last; "" for none.
        began: When it was let in.
        encoded: When the last of its media was, by engines that do that alone; None if none were.
        prefilled: When prefill had read the prompt; None if none did.
        first: Of the first token; None if there never was one.
        ended: Of the last; None if there never was one.
        found_tokens: Of the prompt, what the engine that read it had in its cache.
        gave_way: How often it ended for a more urgent one, and went on later.
        why: Why there is no (whole) answer; "" if there is one.
    """

    ask: TraceCall
    attempts: int = 0
    local: bool = False
    prefill: str = ""
    decode: str = ""
    began: float | None = None
    encoded: float | None = None
    prefilled: float | None = None
    first: float | None = None
    ended: float | None = None
    found_tokens: int = 0
    gave_way: int = 0
    why: str = "never ended"

    @property
    def ttft(self) -> float | None:
        return None if self.first is None else self.first - self.ask.at

    @property
    def tpot(self) -> float | None:
        """Seconds between two tokens, on average; None for an answer that has no two."""
        if self.first is None or self.ended is None or self.ask.answer_tokens < 2:
            return None
        return (self.ended - self.first) / (self.ask.answer_tokens - 1)

    def good(self, targets: Targets) -> bool:
        """Whether it was whole, and in time."""
        ttft, tpot = self.ttft, self.tpot
        if self.why or ttft is None or ttft > targets.ttft_seconds:
            return False
        return tpot is None or tpot <= targets.tpot_seconds
