"""Reports to vLLM of transfers that ended: each once, and none that it does not wait for.

vLLM dies of an id that it did not wait for, and holds the blocks of one that it is never
told of (0.32.0, v1/core/sched/scheduler.py, _update_from_kv_xfer_finished()).

Of a load that has failed and not ended vLLM answers the client, or notes that it has to compute the prompt, and keeps
the blocks until it has ended; both by the request's id, if its worker is in the engine's process, and by blocks
(_handle_failed_recving(), _handle_invalid_blocks(), finish_requests(); kv_connector/utils.py, KVOutputAggregator.aggregate()).
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Results:
    """Request ids.

    Attributes:
        received: Loads that ended, well or not: vLLM may use their blocks.
        failed: Loads that will not succeed. Their blocks stay taken until they end.
        invalid: Blocks of loads that were given up before they ended. `failed` of workers apart vLLM holds back until
            all have received, and not these. They have to be said before that, as they may be others' then.
    """

    sent: frozenset[str]
    received: frozenset[str]
    failed: frozenset[str]
    invalid: frozenset[int] = frozenset()


NOTHING = Results(frozenset(), frozenset(), frozenset())


class Reports:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._receiving: dict[str, Sequence[int]] = {}
        self._sending: set[str] = set()
        self._received: set[str] = set()
        self._failed: set[str] = set()
        self._invalid: set[int] = set()
        self._sent: set[str] = set()

    def receiving(self, request_id: str, blocks: Sequence[int] = ()) -> None:
        """A load begins, into these blocks, which no other request has; a report is due."""
        with self._lock:
            self._receiving[request_id] = blocks

    def sending(self, request_id: str) -> None:
        """The blocks are held for a reader; a report is due."""
        with self._lock:
            self._sending.add(request_id)

    def received(self, request_id: str, *, failed: bool) -> bool:
        """False if no report is due."""
        with self._lock:
            if request_id not in self._receiving:
                return False
            del self._receiving[request_id]
            self._received.add(request_id)
            if failed:
                self._failed.add(request_id)
            return True

    def failing(self, request_id: str) -> None:
        """Note a load that will not succeed, though bytes may still land in its blocks."""
        with self._lock:
            blocks = self._receiving.get(request_id)
            if blocks is not None:
                self._failed.add(request_id)
                self._invalid.update(blocks)

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
                frozenset(self._sent),
                frozenset(self._received),
                frozenset(self._failed),
                frozenset(self._invalid),
            )
            self._sent.clear()
            self._received.clear()
            self._failed.clear()
            self._invalid.clear()
            return taken
