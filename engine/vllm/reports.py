"""Reports to vLLM of transfers that ended: each once, and none that it does not wait for.

vLLM dies of an id that it did not wait for, and holds the blocks of one that it is never
told of (0.32.0, v1/core/sched/scheduler.py, _update_from_kv_xfer_finished()).
"""

import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Results:
    """Request ids.

    Attributes:
        received: Loads that ended, well or not: vLLM may use their blocks.
        failed: Loads that will not succeed. Their blocks stay taken until they end.
    """

    sent: frozenset[str]
    received: frozenset[str]
    failed: frozenset[str]


NOTHING = Results(frozenset(), frozenset(), frozenset())


class Reports:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._receiving: set[str] = set()
        self._sending: set[str] = set()
        self._received: set[str] = set()
        self._failed: set[str] = set()
        self._sent: set[str] = set()

    def receiving(self, request_id: str) -> None:
        """A load begins; a report is due."""
        with self._lock:
            self._receiving.add(request_id)

    def sending(self, request_id: str) -> None:
        """The blocks are held for a reader; a report is due."""
        with self._lock:
            self._sending.add(request_id)

    def received(self, request_id: str, *, failed: bool) -> bool:
        """False if no report is due."""
        with self._lock:
            if request_id not in self._receiving:
                return False
            self._receiving.remove(request_id)
            self._received.add(request_id)
            if failed:
                self._failed.add(request_id)
            return True

    def failing(self, request_id: str) -> None:
        """Note a load that will not succeed, though bytes may still land in its blocks."""
        with self._lock:
            if request_id in self._receiving:
                self._failed.add(request_id)

    def sent(self, request_id: str) -> bool:
        """False if no report is due."""
        with self._lock:
            if request_id not in self._sending:
                return False
            self._sending.remove(request_id)
            self._sent.add(request_id)
            return True

    def take(self) -> Results:
        with self._lock:
            if not (self._sent or self._received or self._failed):
                return NOTHING
            taken = Results(
                frozenset(self._sent), frozenset(self._received), frozenset(self._failed)
            )
            self._sent.clear()
            self._received.clear()
            self._failed.clear()
            return taken
