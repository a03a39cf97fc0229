"""What an engine's /metrics shows of its hand-overs, on either side."""

import threading
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
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
        sends_failed: Pushes and readings that ended without having been handed over.
        lingering: Pages that nobody wants any more, now, but that are still read from.
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
