"""How long a step of decode takes, and how much longer it gets for a prompt that is read in it.

    seconds_per_step = step_seconds + seconds_per_token * read_tokens_per_step

A straight line through stretches of the engine's streams, the latest counting most: how long
each took, and how much the engine came to read itself meanwhile. So a prompt counts with what
it adds to the steps of others. That is less than it takes until it is read, as it waits for
the step that runs; and where a step has room to spare, a prompt rides along for nothing.

What has not shown is not believed: if nothing was read, or always about as much, reading is
taken to cost little.
"""

from typing import Final

FORGOTTEN: Final = 0.002
"""Of all that was seen, with each step: about the last five hundred count, of any streams."""

DOUBT: Final = 0.05
"""Of the mean, squared: how far reading must vary for its cost to be believed half."""

MOST: Final = 10.0
"""Times what was expected, for what took longer: a machine that slept, say."""


class Pace:
    __slots__ = ("_covariance", "_read", "_seconds", "_seen", "_variance")

    def __init__(self) -> None:
        self._seen = 0
        # Means per step, and how they vary.
        self._read = self._seconds = self._variance = self._covariance = 0.0

    def learn(self, steps: int, read_tokens: int, seconds: float) -> None:
        """Of a stretch of a stream; one of no steps says nothing."""
        if not steps:
            return
        read, took = read_tokens / steps, seconds / steps
        if self._seen:
            took = min(took, MOST * (self._seconds + self.longer_seconds(read)))
        self._seen += steps
        share = max(steps / self._seen, 1 - (1 - FORGOTTEN) ** steps)
        more, longer = read - self._read, took - self._seconds
        self._read += share * more
        self._seconds += share * longer
        self._variance = (1 - share) * (self._variance + share * more * more)
        self._covariance = (1 - share) * (self._covariance + share * more * longer)

    def step_seconds(self, batch: int, context_tokens: int) -> float | None:
        """Between two tokens, of so many answers with so much context; None while unknown."""
        return self._seconds if self._seen else None

    def longer_seconds(self, tokens: float) -> float:
        """By how much a stream gets longer if its engine reads so many prompt tokens meanwhile."""
        certain = self._variance + DOUBT * self._read * self._read
        if self._covariance <= 0 or certain == 0:
            return 0.0
        return tokens * self._covariance / certain
