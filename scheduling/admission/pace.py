"""How long somebody who joins a line will wait: those before it, at the pace of late.

The pace is the mean time between two that began while others waited, of about the last
REMEMBERED of them. A line that was empty says nothing of what engines can take, so the time
until its first one begins is not counted.
"""

from typing import Final

REMEMBERED: Final = 20


class Pace:
    __slots__ = ("_last", "_seconds")

    def __init__(self) -> None:
        self._last: float | None = None
        self._seconds: float | None = None

    def began(self, now: float, *, others_wait: bool) -> None:
        """One that had waited began at `now`, monotonic seconds."""
        if self._last is not None:
            took = now - self._last
            known = self._seconds
            self._seconds = took if known is None else known + (took - known) / REMEMBERED
        self._last = now if others_wait else None

    def wait(self, before: int, now: float) -> float | None:
        """Seconds until one with so many before it begins; None while nothing is known."""
        if self._seconds is None:
            return None
        # Nobody has begun for longer than usual: then this is the pace.
        since = now - self._last if self._last is not None else 0.0
        return (before + 1) * max(self._seconds, since)
