"""How far what was expected is from what was seen, lately."""

from typing import Final

FORGOTTEN: Final = 0.02
"""With each comparison: about the last fifty count."""

LEAST_SECONDS: Final = 0.001
"""What was seen counts as this at least: of what takes no time any error would be infinite."""


class Accuracy:
    """
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
        seen = max(seen, LEAST_SECONDS)
        self.compared += 1
        share = max(1 / self.compared, FORGOTTEN)
        more = expected - seen
        self.error += share * (abs(more) / seen - self.error)
        self._more += share * (more - self._more)
        self._seen += share * (seen - self._seen)
