"""What is expected of one instance; None for what nobody can know yet.

    candidate.predicts.prefill_seconds(candidate.unread_tokens + uncached_tokens)
    candidate.predicts.step_seconds(candidate.answering + 1, candidate.tokens + prompt_tokens)

The queue is part of it: a prompt is read when those before it are, so what is learnt is how
long everything took that was unread when the call came, itself included. That needs nothing of
the engine, and has in it how many prompts it reads at once.

What comes back is asked for so often that it must be cheap: a line that was fitted before.
"""

from pdgate.scheduling.predictors.accuracy import Accuracy
from pdgate.scheduling.predictors.bend import SHORT
from pdgate.scheduling.predictors.family import Family
from pdgate.scheduling.predictors.pace import Pace
from pdgate.scheduling.predictors.speed import ENOUGH, Speed


class Predicts:
    """
    Attributes:
        reading: How long it takes to read what was unread when a call came.
        loading: How long it takes, as decode, from the end of prefill to the first token.
        pace: How long its steps take.
        prefill_accuracy: Of `prefill_seconds`, asked when a call came.
        family: Those who are alike.
    """

    __slots__ = ("family", "loading", "pace", "prefill_accuracy", "reading")

    def __init__(
        self, reading: Speed | None = None, loading: Speed | None = None, pace: Pace | None = None
    ) -> None:
        self.reading = reading or Speed()
        self.loading = loading or Speed(level=True)
        self.pace = pace or Pace()
        self.prefill_accuracy = Accuracy()
        self.family = Family()
        self.family.join(self)

    def belongs_to(self, family: Family) -> None:
        """What it has learnt itself stays."""
        if family is not self.family:
            self.family.leave(self)
            self.family = family
            family.join(self)

    # What is asked.

    def prefill_seconds(self, uncached_tokens: int, squares: float | None = None) -> float | None:
        """Until so many prompt tokens have been read, beginning now: those that wait, and more.

        `squares`: the sum of squares of their prompts, as attention has to do with; None for one
        prompt.
        """
        reading = self.reading
        if reading.seen < ENOUGH:
            like = self.family.reading()
            if like is None:
                return None
            reading = like
        if squares is None:
            squares = float(uncached_tokens) * uncached_tokens
        # `Bend.straight` and `Speed.expect` of one who is known, without asking either: this is done
        # for each candidate of each call.
        if not reading.fresh:
            reading.fit()
        straight = uncached_tokens + self.family.bend.per_token * squares
        return reading.fixed + reading.per_token * straight

    def loading_seconds(self, tokens: int) -> float | None:
        """From the end of prefill to decode's first token, for a prompt of so many."""
        if self.loading.seen >= ENOUGH:
            return self.loading.expect(tokens)
        like = self.family.loading()
        return None if like is None else like.expect(tokens)

    def step_seconds(self, batch: int, context_tokens: int) -> float | None:
        """Between two tokens of an answer, of so many answers with so much context together.

        What only the engine itself has said is believed as far as it makes it no quicker than the
        middle one of its kind, or whoever says that no step takes any time would get all calls.
        """
        seconds = self.pace.step_seconds(batch, context_tokens)
        if seconds is not None and self.pace.seen:
            return seconds
        like = self.family.stepping()
        if like is None or like is self:
            return seconds
        of_its_kind = like.pace.step_seconds(batch, context_tokens)
        if seconds is None or of_its_kind is None:
            return of_its_kind if seconds is None else seconds
        return max(seconds, of_its_kind)

    def longer_seconds(self, tokens: int) -> float:
        """By how much each answer gets longer if the engine reads so many tokens meanwhile."""
        return self.pace.longer_seconds(tokens)

    # What was seen.

    def has_read(self, tokens: int, squares: float, seconds: float, expected: float | None) -> None:
        """All that was unread when a call came; `expected`: what was said to be then."""
        if expected is not None:
            self.prefill_accuracy.compare(expected, seconds)
        bend, reading = self.family.bend, self.reading
        # `Bend.straight`, and what `Bend.learn` would not learn from: neither is asked for each call.
        believed = reading.learn(tokens + bend.per_token * squares, seconds, expected)
        if tokens >= SHORT:
            bend.learn(tokens, squares, believed)
        if reading.seen == ENOUGH:
            self.family.changed()

    def has_stepped(
        self, steps: int, read_tokens: int, seconds: float, batch: int, context_tokens: int
    ) -> None:
        """A stream, while the engine read so much, and made so many answers."""
        known = self.pace.known
        self.pace.learn(steps, read_tokens, seconds, batch, context_tokens)
        if not known and self.pace.known:
            self.family.changed()

    def says(self, step_seconds: float, batch: int, context_tokens: int) -> None:
        """The engine says how long its steps took lately."""
        known = self.pace.known
        self.pace.said(step_seconds, batch, context_tokens)
        if not known and self.pace.known:
            self.family.changed()

    def has_loaded(self, tokens: int, seconds: float) -> None:
        self.loading.learn(tokens, seconds)
        if self.loading.seen == ENOUGH:
            self.family.changed()
