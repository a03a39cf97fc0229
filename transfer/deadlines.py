"""Ends transfers that took too long, on one thread for a whole backend."""

import heapq
import itertools
import threading
import time

from pdgate.transfer.base import State, TransferError
from pdgate.transfer.running import Running


class Deadlines:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int, Running]] = []
        self._order = itertools.count()
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, transfer: Running, timeout_seconds: float) -> None:
        with self._changed:
            at = time.monotonic() + timeout_seconds
            heapq.heappush(self._heap, (at, next(self._order), transfer))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="pdgate-transfer-deadlines", daemon=True
                )
                self._thread.start()
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

    def _late(self) -> list[Running]:
        late = []
        while self._heap and (self._heap[0][2].over or self._heap[0][0] <= time.monotonic()):
            late.append(heapq.heappop(self._heap)[2])
        return late
