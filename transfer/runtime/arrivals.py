"""Counts the writes that landed in one region, by their immediate.

An arrival counts whether or not it is expected yet, and in any order, so neither
side has to know which of the two comes first.
"""

import threading
from collections import Counter

from pdgate.transfer.base import State, TransferError
from pdgate.transfer.runtime.running import RunningTransfer

MAX_IMMEDIATE = 2**32 - 1


class Arrivals:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[int] = Counter()
        self._waiting: dict[int, list[tuple[int, RunningTransfer]]] = {}
        self._failure: TransferError | None = None

    def expect(self, immediate: int, count: int, transfer: RunningTransfer) -> None:
        with self._lock:
            failure = self._failure
            if failure is None:
                self._waiting.setdefault(immediate, []).append((count, transfer))
        if failure is not None:
            transfer.leave(failure)
        else:
            self._serve(immediate)

    def count(self, immediate: int) -> None:
        with self._lock:
            self._counts[immediate] += 1
        self._serve(immediate)

    def fail(self, error: TransferError) -> None:
        """The region is closed: every wait is in vain."""
        with self._lock:
            self._failure = error
            left = [transfer for waiting in self._waiting.values() for _, transfer in waiting]
            self._waiting.clear()
        for transfer in left:
            transfer.leave(error)

    def _serve(self, immediate: int) -> None:
        """First come, first served; who has given up is passed over and uses up nothing."""
        done = []
        with self._lock:
            waiting = self._waiting.pop(immediate, [])
            while waiting:
                count, transfer = waiting[0]
                if transfer.state is State.RUNNING:
                    if self._counts[immediate] < count:
                        break
                    self._counts[immediate] -= count
                done.append(waiting.pop(0)[1])
            if waiting:
                self._waiting[immediate] = waiting
            if not self._counts[immediate]:
                del self._counts[immediate]
        for transfer in done:
            transfer.leave()
