"""Leader of several processes: the one whose name is in the store, while it is heard of.

A name that says nothing new for SILENT_PERIODS is of a process that is gone, and then the first that notices
puts its own there. Two may do so in the same moment: the later one stands, and the earlier one
sees that at its next look, and follows. So two never decide for longer than a period, and what
both have said meanwhile is one record, not two.
"""

from typing import Final

from pdgate.gateway.adaptive.record import RoleRecord

SILENT_PERIODS: Final = 3


class Leader:
    """
    Attributes:
        known: Name of the leader, as far as is known; empty for none.
    """

    def __init__(self, own: str, period_seconds: float) -> None:
        self.own = own
        self.known = ""
        self._silence_seconds = SILENT_PERIODS * period_seconds
        self._beat = -1
        self._heard = 0.0

    def hears(self, record: RoleRecord | None, now: float) -> bool:
        """Whether this is news of another process; None: there is no record."""
        if record is None:
            self.known = ""
            return False
        if record.by == self.own:
            self.known = self.own
            return False
        if (record.by, record.beat) == (self.known, self._beat):
            return False
        self.known, self._beat, self._heard = record.by, record.beat, now
        return True

    def leads(self, now: float) -> bool:
        """Whether it is for us to decide."""
        if self.known in ("", self.own):
            return True
        return now - self._heard > self._silence_seconds
