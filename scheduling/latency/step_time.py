"""Time of a step of decode, and how much longer it gets for a prompt that is read in it.

    seconds_per_step = plane(batch, context_tokens) + seconds_per_token * read_tokens_per_step

Learnt from stretches of the engine's streams, the latest counting most: how long each took, and
how much the engine came to read itself meanwhile. So a prompt counts with what it adds to the
steps of others. That is less than it takes until it is read, as it waits for the step that runs;
and where a step has room to spare, a prompt rides along for nothing. What is left of a step after
that grows with the answers in its batch, and with the context that they attend to (least_squares.py).

What has not shown is not believed: if nothing was read, or always about as much, reading is
taken to cost little.

Where no streams are watched, engines may say how long their steps take. That has in it what they
read meanwhile, so it teaches nothing of what reading costs.
"""

from typing import Final

from pdgate.scheduling.latency.accuracy import Accuracy
from pdgate.scheduling.latency.least_squares import RecursiveLeastSquares

FORGOTTEN: Final = 0.002
"""Of all that was seen, with each step: about the last five hundred count, of any streams."""

DOUBT: Final = 0.05
"""Of the mean, squared: how far reading must vary for its cost to be believed half."""

MOST: Final = 10.0
"""Times what was expected, for what took longer: a machine that slept, say."""

ENOUGH: Final = 12.0
"""Steps before which nothing is said of them."""

SAID: Final = 8.0
"""Steps as which an engine's own word counts."""

LEAST_SECONDS: Final = 0.001
"""A step of which is not strange, whatever was expected."""


class StepTime:
    """Time of steps, and what reading adds to it.

    Attributes:
        accuracy: Of what was expected of each stretch.
    """

    __slots__ = ("_covariance", "_plane", "_read", "_seconds", "_seen", "_variance", "accuracy")

    def __init__(self) -> None:
        self.accuracy = Accuracy()
        self._plane = RecursiveLeastSquares(FORGOTTEN)
        self._seen = 0
        # Means per step, and how they vary.
        self._read = self._seconds = self._variance = self._covariance = 0.0

    @property
    def known(self) -> bool:
        return self._plane.weight >= ENOUGH

    @property
    def seen(self) -> bool:
        """Whether it is known from streams, and not by what the engine says."""
        return self._seen > 0

    @property
    def typical(self) -> float:
        """Seconds of a step, on the average."""
        return self._plane.mean

    def step_seconds(self, batch: float, context_tokens: float) -> float | None:
        """Seconds between two tokens, of so many answers with so much context; None while unknown."""
        plane = self._plane
        return plane.expect(batch, context_tokens) if plane.weight >= ENOUGH else None

    def longer_seconds(self, tokens: float) -> float:
        """Seconds by which a stream gets longer if its engine reads so many prompt tokens meanwhile."""
        certain = self._variance + DOUBT * self._read * self._read
        if self._covariance <= 0 or certain == 0:
            return 0.0
        return tokens * self._covariance / certain

    def learn(
        self,
        steps: int,
        read_tokens: int,
        seconds: float,
        batch: float = 1.0,
        context_tokens: float = 0.0,
    ) -> None:
        """Learn from a stretch of a stream; one of no steps says nothing.

        `batch`, `context_tokens`: answers that were made, and what they attended to, together.
        """
        if not steps:
            return
        read, took = read_tokens / steps, seconds / steps
        if self.known:
            expected = self._plane.expect(batch, context_tokens) + self.longer_seconds(read)
            self.accuracy.compare(expected, took)
        if self._seen:
            took = min(took, MOST * (self._seconds + self.longer_seconds(read)))
        self._seen += steps
        share = max(steps / self._seen, 1 - (1 - FORGOTTEN) ** steps)
        more, longer = read - self._read, took - self._seconds
        self._read += share * more
        self._seconds += share * longer
        self._variance = (1 - share) * (self._variance + share * more * more)
        self._covariance = (1 - share) * (self._covariance + share * more * longer)
        alone = max(0.0, took - self.longer_seconds(read))
        self._plane.learn(batch, context_tokens, alone, float(steps))

    def said(self, step_seconds: float, batch: float, context_tokens: float) -> None:
        """The engine's own word; what was seen of its streams goes before it."""
        if self._seen or step_seconds <= 0:
            return
        if self.known:
            expected = self._plane.expect(batch, context_tokens)
            self.accuracy.compare(expected, step_seconds)
            step_seconds = min(step_seconds, MOST * max(expected, LEAST_SECONDS))
        self._plane.learn(batch, context_tokens, step_seconds, SAID)
