"""Summary of a session: what its record says beside what it says of every call (forwarders/record.py, `SessionPart`).

    opened          when its engine had accepted it: UTC
    seconds         it has been open since then, or was
    ended_by        SessionOutcome; None while it is open
    close_code      that the client was told, or told; None for none
    messages, bytes of each side: messages that were whole, and what came of all of them

Nothing of what was said is in it, and no reason of a goodbye: clients write those.
"""

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic, time
from typing import Any, Final

from pdgate.gateway.realtime.endings import SessionEnding

SIDES: Final = ("client", "engine")


class SessionSummary:
    """Summary of a session, kept while it is open."""

    def __init__(self, bytes_of_all: Counter[str], clock: Callable[[], float] = monotonic) -> None:
        """`bytes_of_all`: side -> bytes of all sessions, which grows along."""
        self._bytes_of_all = bytes_of_all
        self._clock = clock
        self._opened = datetime.fromtimestamp(time(), UTC)
        self._began = clock()
        self._ended: float | None = None
        self._ending: SessionEnding | None = None
        self._messages: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    def counted(self, side: str, bytes_: int, whole: bool) -> None:
        """A piece of a message came; with it the message is whole, or not yet."""
        self._bytes_of_all[side] += bytes_
        self._bytes[side] += bytes_
        self._messages[side] += whole

    def ended(self, ending: SessionEnding | None) -> None:
        """`ending` is None where the task was cancelled, so that neither side got a close."""
        self._ended, self._ending = self._clock(), ending

    def as_json(self) -> dict[str, Any]:
        ending = self._ending
        until = self._clock() if self._ended is None else self._ended
        return {
            "opened": self._opened.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "seconds": round(until - self._began, 3),
            "ended_by": None if ending is None else ending.outcome.value,
            "close_code": None if ending is None or ending.code is None else int(ending.code),
            "messages": {side: self._messages[side] for side in SIDES},
            "bytes": {side: self._bytes[side] for side in SIDES},
        }
