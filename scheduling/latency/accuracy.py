"""Accuracy of what is expected: how far it has been from what was seen, lately."""

from typing import Final

FORGOTTEN_ERRORS: Final = 0.02
"""With each comparison: about the last fifty count."""

MANY_ERRORS: Final = 1 / FORGOTTEN_ERRORS
"""Comparisons, up to which all count alike."""

LEAST_SEEN_SECONDS: Final = 0.001
"""What was seen counts as this at least: of what takes no time any error would be infinite."""


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
