"""Run of steps of an engine that differ only by the contexts of its calls, which grow.

seconds(n) = n * base + growth * (0 + 1 + ... + n - 1)
"""

from math import ceil, sqrt
from typing import Final

SLACK: Final = 1e-9
"""Steps: what is a whole number but for the last digit is no step more."""


class Run:
    """
    Attributes:
        began: Seconds of the agenda.
        steps: How many; fewer if it is cut short.
    """

    __slots__ = ("_base", "_growth", "began", "steps")

    def __init__(self, began: float, steps: int, base: float, growth: float) -> None:
        """`base`: seconds of the first step; `growth`: by which each takes longer."""
        self.began = began
        self.steps = steps
        self._base = base
        self._growth = growth

    @property
    def ends(self) -> float:
        steps = self.steps
        return self.began + steps * self._base + self._growth * steps * (steps - 1) / 2

    def cut(self, now: float) -> bool:
        """Ends it with the step that runs now. Whether that is sooner."""
        steps = self._until(now - self.began)
        if steps >= self.steps:
            return False
        self.steps = steps
        return True

    def done(self, now: float) -> int:
        """Steps that are over."""
        elapsed = now - self.began
        steps = self._until(elapsed)
        took = steps * self._base + self._growth * steps * (steps - 1) / 2
        return steps if took <= elapsed + SLACK else steps - 1

    def _until(self, elapsed: float) -> int:
        """The fewest that take at least so long, one at least."""
        linear = self._base - self._growth / 2
        if self._growth:
            root = sqrt(linear * linear + 2 * self._growth * elapsed)
            steps = (root - linear) / self._growth
        else:
            steps = elapsed / linear
        return max(1, ceil(steps - SLACK))
