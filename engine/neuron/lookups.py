"""Order of D's lookups at one P. Pure.

    waiting (oldest first)  --due--> asked --failed--> waiting, a little longer than before

P answers at once, also when it has nothing yet, so the same lookup is sent again and again.
Among those that are due the oldest goes first; a pause that grows keeps an idle wait cheap:
10 lookups per second at most, well under 1 % of a core.
"""

from dataclasses import dataclass
from typing import Final

SHORTEST_SECONDS: Final = 0.001
LONGEST_SECONDS: Final = 0.1
GROWTH: Final = 1.5


@dataclass(slots=True)
class _Waiting:
    pause: float
    due: float


class Lookups:
    """Times are of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Waiting] = {}

    def add(self, request_id: str, now: float) -> None:
        self._waiting[request_id] = _Waiting(SHORTEST_SECONDS, now)

    def remove(self, request_id: str) -> None:
        self._waiting.pop(request_id, None)

    def absent(self, request_id: str) -> bool:
        return request_id not in self._waiting

    def next(self, now: float) -> str | None:
        """The oldest one that is due."""
        for request_id, one in self._waiting.items():
            if one.due <= now:
                return request_id
        return None

    def failed(self, request_id: str, now: float) -> None:
        one = self._waiting[request_id]
        one.due = now + one.pause
        one.pause = min(one.pause * GROWTH, LONGEST_SECONDS)

    @property
    def wake_at(self) -> float:
        """Time at which the next lookup is due; infinity if none waits."""
        return min((one.due for one in self._waiting.values()), default=float("inf"))
