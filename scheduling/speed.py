"""How long something takes for so many tokens, learnt from how long it took.

    seconds = fixed + tokens * per_token

A straight line through what was seen, fitted by least squares with each weighed by
1 / tokens (long ones vary more) and the latest counting most. One point always belongs to
it: nothing takes no time. So what was seen of one size only is taken to grow in proportion.
Neither part can be negative; where the fit says so, what is left of the line is fitted alone.
"""

from typing import Final

ENOUGH: Final = 3
"""Seen before which nothing is said."""

DECAY: Final = 0.85
"""What each counts after the next has been seen: about the last seven count."""

LEAST_TOKENS: Final = 32
"""Shorter ones weigh no more than these, or an empty prompt would outweigh all others."""

ANCHOR: Final = 0.02
"""Share of the weight of all others that the point at nothing has."""


class Speed:
    __slots__ = ("_products", "_seconds", "_squares", "_tokens", "_weight", "seen")

    def __init__(self) -> None:
        self.seen = 0
        # Sums of w, wt, ws, wtt and wts over tokens t and seconds s with their weights w.
        self._weight = self._tokens = self._seconds = self._squares = self._products = 0.0

    def learn(self, tokens: int, seconds: float) -> None:
        weight = 1 / max(tokens, LEAST_TOKENS)
        self.seen += 1
        self._weight = self._weight * DECAY + weight
        self._tokens = self._tokens * DECAY + weight * tokens
        self._seconds = self._seconds * DECAY + weight * seconds
        self._squares = self._squares * DECAY + weight * tokens * tokens
        self._products = self._products * DECAY + weight * tokens * seconds

    def expect(self, tokens: int) -> float | None:
        """Seconds; None while too little was seen."""
        if self.seen < ENOUGH:
            return None
        weight = self._weight * (1 + ANCHOR)
        mean_tokens, mean_seconds = self._tokens / weight, self._seconds / weight
        spread = self._squares / weight - mean_tokens**2
        if spread <= 0:
            # Nothing but empty prompts.
            return self._seconds / self._weight
        per_token = (self._products / weight - mean_tokens * mean_seconds) / spread
        fixed = mean_seconds - per_token * mean_tokens
        if fixed < 0:
            return self._products / self._squares * tokens
        if per_token < 0:
            return self._seconds / self._weight
        return fixed + per_token * tokens
