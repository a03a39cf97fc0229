"""Recursive least squares: a mean, and its slopes by two things, learnt sample by sample.

    y = mean + first * (a - mean of a) + second * (b - mean of b)

The latest count most. What has not shown is not believed: a slope is the smaller, the less its
thing has varied; and slopes are never negative, as only what costs is looked for here.
"""

from typing import Final

DOUBT: Final = 0.01
"""Of the mean, squared: how far a thing must vary for its slope to be believed half."""


class RecursiveLeastSquares:
    """A plane through what was seen.

    Attributes:
        mean: Of y.
        weight: Of all that was seen, and is not forgotten.
    """

    __slots__ = (
        "_a", "_aa", "_ab", "_ay", "_b", "_bb", "_by", "_first", "_forgotten", "_fresh", "_second",
        "mean", "weight",
    )  # fmt: skip

    def __init__(self, forgotten: float) -> None:
        """`forgotten`: of all that was seen, with each sample of weight 1."""
        self._forgotten = forgotten
        self.weight = 0.0
        # The slopes, made when they are asked for.
        self._first = self._second = 0.0
        self._fresh = True
        # Means, and how they vary together.
        self._a = self._b = self.mean = 0.0
        self._aa = self._ab = self._bb = self._ay = self._by = 0.0

    def learn(self, a: float, b: float, y: float, weight: float = 1.0) -> None:
        """`weight` is more than 0."""
        self.weight = self.weight * (1 - self._forgotten) ** weight + weight
        share = weight / self.weight
        more_a, more_b, more_y = a - self._a, b - self._b, y - self.mean
        self._a += share * more_a
        self._b += share * more_b
        self.mean += share * more_y
        kept = 1 - share
        self._aa = kept * (self._aa + share * more_a * more_a)
        self._ab = kept * (self._ab + share * more_a * more_b)
        self._bb = kept * (self._bb + share * more_b * more_b)
        self._ay = kept * (self._ay + share * more_a * more_y)
        self._by = kept * (self._by + share * more_b * more_y)
        self._fresh = False

    def expect(self, a: float, b: float) -> float:
        """Expected value, never less than 0."""
        if not self._fresh:
            self._fit()
        expected = self.mean + self._first * (a - self._a) + self._second * (b - self._b)
        return expected if expected > 0 else 0.0

    @property
    def base(self) -> float:
        """Value where both are nothing."""
        return self.expect(0.0, 0.0)

    @property
    def first(self) -> float:
        """The slope of the one."""
        if not self._fresh:
            self._fit()
        return self._first

    @property
    def second(self) -> float:
        if not self._fresh:
            self._fit()
        return self._second

    def _fit(self) -> None:
        self._fresh = True
        aa = self._aa + DOUBT * self._a * self._a
        bb = self._bb + DOUBT * self._b * self._b
        both = aa * bb - self._ab * self._ab
        first = second = 0.0
        if both > 0:
            first = (self._ay * bb - self._by * self._ab) / both
            second = (self._by * aa - self._ay * self._ab) / both
        # Without the one that would be negative, or is always nothing, the other has to say all.
        if first <= 0:
            first, second = 0.0, self._by / bb if bb else 0.0
        if second <= 0:
            first, second = self._ay / aa if aa else 0.0, 0.0
        self._first, self._second = max(0.0, first), second
