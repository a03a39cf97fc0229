"""Outcome of one call that was really sent."""

from dataclasses import dataclass, field
from typing import Final

from pdgate.lab.simulator.trace import TraceCall
from pdgate.scheduling.policy_context import Targets

NEVER_SENT: Final = "never sent"


@dataclass(slots=True)
class ReplayOutcome:
    """Times in seconds since the replay began.

    Attributes:
        answer_tokens: That were asked for.
        due: When it was to be sent: at the trace's time, or when there was room for it.
        sent: When it was written.
        first, last: When its first and its last token came; None if none did.
        ended: When the answer was over.
        prompt_tokens, tokens: Of the prompt and the answer, as the API counted them.
        gaps: Seconds between the pieces that had text.
        why: Why there is no answer that is whole and right, by kind; "" if there is one.
    """

    ask: TraceCall
    answer_tokens: int
    due: float = 0.0
    sent: float = 0.0
    first: float | None = None
    last: float | None = None
    ended: float | None = None
    prompt_tokens: int = 0
    tokens: int = 0
    gaps: list[float] = field(default_factory=list)
    why: str = NEVER_SENT

    @property
    def late(self) -> float:
        """Seconds by which the driver itself was late."""
        return max(0.0, self.sent - self.due)

    @property
    def ttft(self) -> float | None:
        return None if self.first is None else self.first - self.sent

    @property
    def tpot(self) -> float | None:
        """Seconds between two tokens, on average; None for an answer that has no two."""
        if self.first is None or self.last is None or self.tokens < 2:
            return None
        return (self.last - self.first) / (self.tokens - 1)

    @property
    def whole(self) -> float | None:
        """Seconds from its being sent to its end."""
        return None if self.why or self.ended is None else self.ended - self.sent

    def good(self, targets: Targets) -> bool:
        """Whether it was whole and right, and in time."""
        if self.why or self.ttft is None or self.ttft > targets.ttft_seconds:
            return False
        return self.tpot is None or self.tpot <= targets.tpot_seconds
