"""Quadratic term of reading: by how much long prompts take longer than in proportion to their length.

    seconds / token = per_token + fixed / tokens + per_square * length

Attention compares each token with those before it, so a part of the work grows with the square.
That part belongs to a model and its hardware, not to a moment: it is learnt slowly, and in
common by all instances that are alike. `squares` are the sum over prompts of tokens squared, so
`squares / tokens` is the length that a token of them sees.

What there is of it is given as a length of its own: a prompt of 100,000 tokens at a term of
1 / 100,000 takes as long as 200,000 tokens would in short ones.
"""

from typing import Final

from pdgate.scheduling.latency.least_squares import RecursiveLeastSquares

FORGOTTEN: Final = 0.005
"""With each prompt: about the last two hundred count."""

SHORT: Final = 256
"""Tokens below which prompts say nothing of it, and are not worth the time."""

EVERY: Final = 8
"""Prompts, after which what they say is worked out anew."""


STRIDE: Final = 0.25
"""Of the way to what was worked out: lines that were fitted to the old lengths have to follow."""

MOST: Final = 0.001
"""The most that is believed: half of the work of a prompt of a thousand tokens."""


class QuadraticTerm:
    """What attention adds, as a length.

    Attributes:
        per_token: Tokens that a token of a prompt counts more for each token of its length.
    """

    __slots__ = ("_plane", "_seen", "per_token")

    def __init__(self) -> None:
        self._plane = RecursiveLeastSquares(FORGOTTEN)
        self._seen = 0
        self.per_token = 0.0

    def learn(self, tokens: float, squares: float, seconds: float) -> None:
        """All together, of one prompt or of several."""
        if tokens < SHORT:
            return
        self._plane.learn(1 / tokens, squares / tokens, seconds / tokens)
        self._seen += 1
        if self._seen % EVERY == 0:
            self._fit()

    def _fit(self) -> None:
        straight = self._plane.base
        # Where the fixed part takes all, there is nothing to be in proportion to.
        found = min(MOST, self._plane.second / straight) if straight > 0 else 0.0
        self.per_token += (found - self.per_token) * STRIDE
