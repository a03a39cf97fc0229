"""A transfer under way, as the backends here share it, and its deadline.

    running --end(DONE)-------------------------> done, settled
            --end(FAILED | TIMED_OUT | CANCELLED)-> over for the caller; the job is
                                                  interrupted and settles when it has left;
                                                  one that has not begun settles at once

The first end wins. A job runs on a thread of the backend and holds the memory until it
calls `leave`; only then may bytes no longer land.
"""

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

from pdgate.transfer.base import State, Transfer, TransferError

SWEEP_AT_LEAST = 256

log = logging.getLogger(__name__)


class TransferInterrupted(Exception):
    """For the job: the transfer has ended, and its bytes are of no use any more."""


class RunningTransfer(Transfer):
    """Attributes:
    over: It has ended.
    """

    def __init__(self, what: str, *, moves_bytes: bool = True, waits: bool = False) -> None:
        """`waits`: no job has begun with it, and bytes move from `begin` on."""
        self.what = what
        self.state = State.RUNNING
        self.error: TransferError | None = None
        # One condition and no events: making these is most of what a small transfer costs.
        self._lock = threading.Condition(threading.Lock())
        self.over = False
        self._left = not moves_bytes
        self._waits = waits
        self._callbacks: list[Callable[[Transfer], None]] = []
        self._interrupt: Callable[[], None] | None = None

    @property
    def settled(self) -> bool:
        return self._left

    def settle(self, timeout_seconds: float) -> bool:
        with self._lock:
            return self._lock.wait_for(lambda: self._left, timeout_seconds)

    def add_done_callback(self, callback: Callable[[Transfer], None]) -> None:
        with self._lock:
            if not self.over:
                self._callbacks.append(callback)
                return
        callback(self)

    def wait(self, timeout_seconds: float) -> None:
        if not self.over and not self._ends_within(timeout_seconds):
            self.end(State.TIMED_OUT, TransferError(f"{self.what} took over {timeout_seconds} s"))
        if self.error is not None:
            raise self.error

    def cancel(self) -> None:
        self.end(State.CANCELLED, TransferError(f"{self.what} was cancelled"))

    def end(self, state: State, error: TransferError | None = None) -> bool:
        """False if it had ended before."""
        with self._lock:
            if self.over:
                return False
            self.state, self.error, self.over = state, error, True
            # It may wait long for a thread, behind those that wait for hung peers.
            self._left = self._left or self._waits
            self._lock.notify_all()
            callbacks, self._callbacks = self._callbacks, []
            interrupt, self._interrupt = self._interrupt, None
        if interrupt is not None and state is not State.DONE:
            try:
                interrupt()
            # Who waits for the end has to hear of it, and the deadlines' thread goes on.
            except Exception:
                log.exception("%s could not be interrupted", self.what)
        for callback in callbacks:
            callback(self)
        return True

    def begin(self) -> None:
        """For the job: from now on it touches the memory. Raises TransferInterrupted."""
        with self._lock:
            if self.over:
                raise TransferInterrupted
            self._waits = False

    def on_interrupt(self, interrupt: Callable[[], None] | None) -> None:
        """For the job: how to wake it if the transfer ends early. Raises TransferInterrupted."""
        with self._lock:
            if self.over:
                raise TransferInterrupted
            self._interrupt = interrupt

    def leave(self, error: TransferError | None = None) -> None:
        """For the job: it touches the memory no more; all went well unless `error`."""
        with self._lock:
            self._left = True
            self._lock.notify_all()
        if error is None:
            self.end(State.DONE)
        else:
            self.end(State.FAILED, error)

    def _ends_within(self, timeout_seconds: float) -> bool:
        with self._lock:
            return self._lock.wait_for(lambda: self.over, timeout_seconds)


class TransferDeadlines:
    """Ends of transfers that took too long, on one thread for a whole backend.

    Nearly all transfers end long before their deadline, so the thread is left asleep unless a
    deadline comes that is the next of all, and what has ended is only swept out now and then.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int, RunningTransfer]] = []
        self._order = itertools.count()
        self._sweep_at = SWEEP_AT_LEAST
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, transfer: RunningTransfer, timeout_seconds: float) -> None:
        """Raises RuntimeError: no more threads."""
        with self._changed:
            entry = (time.monotonic() + timeout_seconds, next(self._order), transfer)
            heapq.heappush(self._heap, entry)
            if len(self._heap) > self._sweep_at:
                self._sweep()
            if self._thread is None:
                thread = threading.Thread(
                    target=self._run, name="pdgate-transfer-deadlines", daemon=True
                )
                thread.start()
                # One that could not be started is not it.
                self._thread = thread
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

    def _late(self) -> list[RunningTransfer]:
        late = []
        while self._heap and (self._heap[0][2].over or self._heap[0][0] <= time.monotonic()):
            late.append(heapq.heappop(self._heap)[2])
        return late
