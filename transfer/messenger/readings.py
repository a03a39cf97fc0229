"""What one connection reads of ours, for the counters."""

import time
from dataclasses import dataclass

from pdgate.transfer.messenger.counters import Counters


@dataclass(frozen=True, slots=True)
class _Reading:
    since: float
    most_bytes: int


class Readings:
    """Offers by their ids, from being lent to their end."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._open: dict[str, _Reading] = {}

    def began(self, offer_id: str, most_bytes: int) -> None:
        """`most_bytes`: all that the pages hold."""
        self._open.setdefault(offer_id, _Reading(time.monotonic(), most_bytes))

    def ended(self, offer_id: str, *, held: bool, bytes_read: int) -> None:
        """`bytes_read` is the reader's word, so it is taken with a limit."""
        reading = self._open.pop(offer_id, None)
        if reading is None:
            return
        self._counters.add(seconds_sending=time.monotonic() - reading.since)
        if held:
            read = min(max(bytes_read, 0), reading.most_bytes)
            self._counters.add(sent=1, bytes_sent=read)
        else:
            self._counters.add(sends_failed=1)

    def close(self) -> None:
        """The reader is gone."""
        for offer_id in list(self._open):
            self.ended(offer_id, held=False, bytes_read=0)
