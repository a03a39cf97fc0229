"""How long something takes for so many tokens, learnt from how long it took.

    seconds = fixed + tokens * per_token

A straight line through what was seen, fitted by least squares with each weighed by
1 / tokens (long ones vary more) and the latest counting most. What was seen of one size only
is taken to grow in proportion, or to be the same for all sizes, as is likelier for what is
measured. Neither part can be negative; where the fit says so, what is left is fitted alone.

One that takes MOST times as long as expected (a machine that slept, a call that got stuck) counts
as that; of several in a row the limit doubles each time, as then it is the engine that changed.
"""

from typing import Final

ENOUGH: Final = 3
"""Seen before which nothing is said."""

FORGOTTEN: Final = 0.15
"""Of all that was seen, when the next one has been: about the last seven count."""

KEPT: Final = 1 - FORGOTTEN

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


class Speed:
    """
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
        """Returns the seconds that are believed. `expected`: what was, if anybody has asked."""
        if self.seen >= ENOUGH and (self._strange or expected is None or seconds > MOST * expected):
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
        """Draws the line anew. Whoever asks does so when it is not fresh, and not who learns: of
        some nobody ever asks."""
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
