"""Ends transfers that took too long, on one thread for a whole backend.

Nearly all transfers end long before their deadline, so the thread is left asleep unless a
deadline comes that is the next of all, and what has ended is only swept out now and then.
"""

import heapq
import itertools
import threading
import time

from pdgate.transfer.base import State, TransferError
from pdgate.transfer.kit.running import Running

SWEEP_AT_LEAST = 256


class Deadlines:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int, Running]] = []
        self._order = itertools.count()
        self._sweep_at = SWEEP_AT_LEAST
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, transfer: Running, timeout_seconds: float) -> None:
        with self._changed:
            entry = (time.monotonic() + timeout_seconds, next(self._order), transfer)
            heapq.heappush(self._heap, entry)
            if len(self._heap) > self._sweep_at:
                self._sweep()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="pdgate-transfer-deadlines", daemon=True
                )
                self._thread.start()
            if self._heap[0] is entry:
                self._changed.notify()

    def close(self) -> None:
        """The deadlines that are left no longer count. Returns when the thread has ended."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                late = self._late()
                if self._closed:
                    return
                if not late:
                    self._changed.wait(self._heap[0][0] - time.monotonic() if self._heap else None)
                    continue
            # Outside the lock: an end runs callbacks, which may start the next transfer.
            for transfer in late:
                transfer.end(State.TIMED_OUT, TransferError(f"{transfer.what} took too long"))

    def _sweep(self) -> None:
        """In constant time for each transfer: next when there are twice as many as now remain."""
        self._heap = [entry for entry in self._heap if not entry[2].over]
        heapq.heapify(self._heap)
        self._sweep_at = max(SWEEP_AT_LEAST, 2 * len(self._heap))

    def _late(self) -> list[Running]:
        late = []
        while self._heap and (self._heap[0][2].over or self._heap[0][0] <= time.monotonic()):
            late.append(heapq.heappop(self._heap)[2])
        return late
