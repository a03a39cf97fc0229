"""Rate at which tokens are read, or taken over, learnt from how long it took; and its accuracy.

    seconds = fixed + tokens * per_token

A straight line through what was seen, fitted by least squares with each weighed by
1 / tokens (long ones vary more) and the latest counting most. What was seen of one size only
is taken to grow in proportion, or to be the same for all sizes, as is likelier for what is
measured. Neither part can be negative; where the fit makes one so, what is left is fitted alone.

One that takes MOST times as long as expected (a machine that slept, a call that got stuck) counts
as that; of several in a row the limit doubles each time, as then it is the engine that changed.
"""

from typing import Final

ENOUGH: Final = 3
"""Seen before which nothing is said."""

FORGOTTEN: Final = 0.15
"""Of all that was seen, when the next one has been: about the last seven count."""

KEPT: Final = 1 - FORGOTTEN

REMAINS: Final = 0.001
"""Of all that was seen, after `forget`."""

LEAST_TOKENS: Final = 32
"""Shorter ones weigh no more than these, or an empty prompt would outweigh all others."""

MOST_WEIGHT: Final = 1 / LEAST_TOKENS

ANCHOR: Final = 0.02
"""Where times grow in proportion: the share of all weight that a point at nothing has."""

LEVEL: Final = 1.0
"""Where they do not: how far sizes must differ, in their mean, for a slope to be believed half."""

MOST: Final = 4.0
"""Times what was expected."""

MOST_DOUBLINGS: Final = 20

LEAST_SECONDS: Final = 0.01
"""What is shorter is not strange, whatever was expected."""

SURE_SECONDS: Final = MOST * LEAST_SECONDS
"""What takes no longer is believed without a look at what was expected."""

FORGOTTEN_ERRORS: Final = 0.02
"""With each comparison: about the last fifty count."""

MANY_ERRORS: Final = 1 / FORGOTTEN_ERRORS
"""Comparisons, up to which all count alike."""

LEAST_SEEN_SECONDS: Final = 0.001
"""What was seen counts as this at least: of what takes no time any error would be infinite."""


class Rate:
    """Seconds by tokens, as a line.

    Attributes:
        seen: How often it was learnt from.
        fixed, per_token: The line through that, as of the latest `fit`.
        fresh: Whether that was after the latest `learn`.
    """

    __slots__ = (
        "_anchored", "_products", "_seconds", "_squares", "_strange", "_tokens", "_varies", "_weight",
        "fixed", "fresh", "per_token", "seen",
    )  # fmt: skip

    def __init__(self, *, level: bool = False) -> None:
        """`level`: sizes make no difference unless it shows."""
        self.seen = 0
        # Of all weight, and of the mean squared.
        self._anchored = 1.0 if level else 1 + ANCHOR
        self._varies = LEVEL - 1 if level else -1.0
        # Sums of w, wt, ws, wtt and wts over tokens t and seconds s with their weights w.
        self._weight = self._tokens = self._seconds = self._squares = self._products = 0.0
        # The line through them, made when it is asked for.
        self.fixed = self.per_token = 0.0
        self.fresh = False
        self._strange = 0

    def learn(self, tokens: float, seconds: float, expected: float | None = None) -> float:
        """Returns the seconds that are believed. `expected`: what was, if a caller has asked."""
        if self.seen >= ENOUGH and (
            self._strange
            or (seconds > SURE_SECONDS and (expected is None or seconds > MOST * expected))
        ):
            seconds = self._believed(tokens, seconds, expected)
        of_tokens, of_squares = self._tokens, self._squares
        # A short prompt says little of long ones, so it makes them forgotten only a little.
        kept = KEPT
        if tokens * of_tokens < of_squares:
            kept = 1 - FORGOTTEN * tokens * of_tokens / of_squares
        weight = 1 / tokens if tokens > LEAST_TOKENS else MOST_WEIGHT
        weighed = weight * tokens
        self.seen += 1
        self._weight = self._weight * kept + weight
        self._tokens = of_tokens * kept + weighed
        self._seconds = self._seconds * kept + weight * seconds
        self._squares = of_squares * kept + weighed * tokens
        self._products = self._products * kept + weighed * seconds
        self.fresh = False
        return seconds

    def forget(self) -> None:
        """What is seen next counts more than all before it; until then the line stays as it is."""
        self._weight *= REMAINS
        self._tokens *= REMAINS
        self._seconds *= REMAINS
        self._squares *= REMAINS
        self._products *= REMAINS
        self._strange = 0

    def expect(self, tokens: float) -> float | None:
        """Seconds; None while too little was seen."""
        if self.seen < ENOUGH:
            return None
        if not self.fresh:
            self.fit()
        return self.fixed + self.per_token * tokens

    def _believed(self, tokens: float, seconds: float, expected: float | None) -> float:
        if expected is None:
            expected = self.expect(tokens) or 0.0
        most = MOST * 2.0**self._strange * max(expected, LEAST_SECONDS)
        if seconds <= most:
            self._strange = 0
            return seconds
        self._strange = min(self._strange + 1, MOST_DOUBLINGS)
        return most

    def fit(self) -> None:
        """Draws the line anew. A reader does so when it is not fresh, and not the learner: some
        rates are never read."""
        self.fresh = True
        squares, products = self._squares, self._products
        weight = self._weight * self._anchored
        mean_tokens, mean_seconds = self._tokens / weight, self._seconds / weight
        spread = squares / weight + self._varies * mean_tokens * mean_tokens
        if spread <= 0:
            # Nothing but empty prompts.
            self.fixed, self.per_token = self._seconds / self._weight, 0.0
            return
        per_token = (products / weight - mean_tokens * mean_seconds) / spread
        fixed = mean_seconds - per_token * mean_tokens
        if fixed < 0:
            fixed, per_token = 0.0, products / squares
        elif per_token < 0:
            fixed, per_token = self._seconds / self._weight, 0.0
        self.fixed, self.per_token = fixed, per_token


class Accuracy:
    """How far what was expected is from what was seen, lately.

    Attributes:
        compared: How often, ever.
        error: The mean of |expected - seen| / seen.
        bias: The mean of (expected - seen), as a share of what was seen: over 0 where too much
            is expected.
    """

    __slots__ = ("_more", "_seen", "compared", "error")

    def __init__(self) -> None:
        self.compared = 0
        self.error = self._more = self._seen = 0.0

    @property
    def bias(self) -> float:
        return self._more / self._seen if self._seen else 0.0

    def compare(self, expected: float, seen: float) -> None:
        """Both in seconds."""
        if seen < LEAST_SEEN_SECONDS:  # noqa: PLR1730 (a fifth of the time of max)
            seen = LEAST_SEEN_SECONDS
        compared = self.compared = self.compared + 1
        share = FORGOTTEN_ERRORS if compared > MANY_ERRORS else 1 / compared
        more = expected - seen
        error, mean_more, mean_seen = self.error, self._more, self._seen
        self.error = error + share * ((more if more > 0 else -more) / seen - error)
        self._more = mean_more + share * (more - mean_more)
        self._seen = mean_seen + share * (seen - mean_seen)
