"""Counts the writes that landed in one region, by their immediate.

An arrival counts whether or not it is expected yet, and in any order, so neither
side has to know which of the two comes first. Nothing is left of who has given up, nor of what
landed for it once `forget` says that no more can.
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
            transfer.add_done_callback(lambda _: self._over(immediate, transfer))
            self._serve(immediate)

    def count(self, immediate: int) -> None:
        with self._lock:
            self._counts[immediate] += 1
        self._serve(immediate)

    def forget(self, immediates: range) -> None:
        """What has landed with these is nobody's, and no more can."""
        with self._lock:
            for immediate in [counted for counted in self._counts if counted in immediates]:
                del self._counts[immediate]

    def fail(self, error: TransferError) -> None:
        """The region is closed: every wait is in vain."""
        with self._lock:
            self._failure = error
            left = [transfer for waiting in self._waiting.values() for _, transfer in waiting]
            self._waiting.clear()
        for transfer in left:
            transfer.leave(error)

    def _over(self, immediate: int, transfer: RunningTransfer) -> None:
        """Of one that was served nothing is there any more."""
        with self._lock:
            waiting = self._waiting.get(immediate, [])
            left = [one for one in waiting if one[1] is not transfer]
            if len(left) == len(waiting):
                return
            if left:
                self._waiting[immediate] = left
            else:
                del self._waiting[immediate]
        # The next may have been waiting for nothing else.
        self._serve(immediate)

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
