"""What is expected of one instance; None for what nobody can know yet.

candidate.predicts.prefill_seconds(candidate.unread_tokens + uncached_tokens)
candidate.predicts.step_seconds(batch=9, context_tokens=40_000)
"""

from pdgate.scheduling.predictors.pace import Pace
from pdgate.scheduling.predictors.speed import Speed


class Predicts:
    """
    Attributes:
        reading: How long it takes to read what was unread when a call came.
        loading: How long it takes, as decode, from the end of prefill to the first token.
        pace: How long its steps take.
    """

    __slots__ = ("loading", "pace", "reading")

    def __init__(
        self, reading: Speed | None = None, loading: Speed | None = None, pace: Pace | None = None
    ) -> None:
        self.reading = reading or Speed()
        self.loading = loading or Speed(level=True)
        self.pace = pace or Pace()

    def prefill_seconds(self, uncached_tokens: int) -> float | None:
        """Until so many prompt tokens have been read, beginning now: those that wait, and more."""
        return self.reading.expect(uncached_tokens)

    def loading_seconds(self, tokens: int) -> float | None:
        """From the end of prefill to decode's first token, for a prompt of so many."""
        return self.loading.expect(tokens)

    def step_seconds(self, batch: int, context_tokens: int) -> float | None:
        """Between two tokens of an answer, of so many answers with so much context together."""
        return self.pace.step_seconds(batch, context_tokens)

    def longer_seconds(self, tokens: int) -> float:
        """By how much each answer gets longer if the engine reads so many tokens meanwhile."""
        return self.pace.longer_seconds(tokens)
