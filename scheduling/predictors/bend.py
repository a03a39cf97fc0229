"""By how much long prompts take longer than in proportion to their length.

    seconds / token = per_token + fixed / tokens + per_square * length

Attention compares each token with those before it, so a part of the work grows with the square.
That part belongs to a model and its hardware, not to a moment: it is learnt slowly, and in
common by all instances that are alike. `squares` are the sum over prompts of tokens squared, so
`squares / tokens` is the length that a token of them sees.

What there is of it is told as a length of its own: a prompt of 100,000 tokens at a bend of
1 / 100,000 takes as long as 200,000 tokens would in short ones.
"""

from typing import Final

from pdgate.scheduling.predictors.plane import Plane

FORGOTTEN: Final = 0.005
"""With each prompt: about the last two hundred count."""

WHOLE: Final = 512
"""Tokens from which on a prompt says as much as another; the shorter, the less."""

ENOUGH: Final = 8.0
"""Weight before which nothing is said."""

MOST: Final = 0.001
"""The most that is believed: half of the work of a prompt of a thousand tokens."""


class Bend:
    """
    Attributes:
        per_token: Tokens that a token of a prompt counts more for each token of its length.
    """

    __slots__ = ("_plane", "per_token")

    def __init__(self) -> None:
        self._plane = Plane(FORGOTTEN)
        self.per_token = 0.0

    def learn(self, tokens: float, squares: float, seconds: float) -> None:
        """All together, of one prompt or of several."""
        if tokens < 1:
            return
        plane = self._plane
        plane.learn(1 / tokens, squares / tokens, seconds / tokens, min(1.0, tokens / WHOLE))
        # Where the fixed part takes all, there is nothing to be in proportion to.
        straight = plane.base
        if plane.weight < ENOUGH or straight <= 0:
            self.per_token = 0.0
        else:
            self.per_token = min(MOST, plane.second / straight)

    def straight(self, tokens: float, squares: float) -> float:
        """How many tokens of short prompts would take as long."""
        return tokens + self.per_token * squares
