"""Counts of an engine's hand-overs, on either side, for its /metrics."""

import threading
import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class MessengerCounters:
    """Many threads count, so they count by `add`; reading needs no lock.

    Attributes:
        transfers: Loads that ended well, on the decode side.
        bytes_moved: By these loads.
        seconds: That loads took, however they ended, all added up.
        failed: Loads that ended with an error, cancelled ones included.
        expired: Kept requests whose lease ended before a reader released them.
        stranded: Pages of failed loads, now, in which a silent peer may still write.
        sent: Requests that were handed over, on the prefill side.
        bytes_sent: By these; of pages that were read, as the reader says.
        seconds_sending: From a meeting of both sides to its end, however it ended.
        sends_failed: PushTable and readings that ended without having been handed over.
        lingering: Pages that are not wanted any more, now, but that are still read from.
    """

    transfers: int = 0
    bytes_moved: int = 0
    failed: int = 0
    expired: int = 0
    stranded: int = 0
    seconds: float = 0.0
    sent: int = 0
    bytes_sent: int = 0
    seconds_sending: float = 0.0
    sends_failed: int = 0
    lingering: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, **growth: float) -> None:
        """By the attributes' names; negative for what is over."""
        with self._lock:
            for name, more in growth.items():
                setattr(self, name, getattr(self, name) + more)


@dataclass(frozen=True, slots=True)
class _Reading:
    since: float
    most_bytes: int


class Readings:
    """Offers that one connection reads, by their ids, from being lent to their end."""

    def __init__(self, counters: MessengerCounters) -> None:
        self._counters = counters
        self._open: dict[str, _Reading] = {}

    def began(self, offer_id: str, most_bytes: int) -> None:
        """`most_bytes`: all that the pages hold."""
        self._open.setdefault(offer_id, _Reading(time.monotonic(), most_bytes))

    def ended(self, offer_id: str, *, held: bool, bytes_read: int, last: bool = True) -> None:
        """`bytes_read` is the reader's word, so it is taken with a limit. `last`: no other
        peer is to read a share of it.
        """
        reading = self._open.pop(offer_id, None)
        if reading is None:
            return
        self._counters.add(seconds_sending=time.monotonic() - reading.since)
        if held:
            read = min(max(bytes_read, 0), reading.most_bytes)
            self._counters.add(sent=int(last), bytes_sent=read)
        else:
            self._counters.add(sends_failed=1)

    def close(self) -> None:
        """The reader is gone."""
        for offer_id in list(self._open):
            self.ended(offer_id, held=False, bytes_read=0)
