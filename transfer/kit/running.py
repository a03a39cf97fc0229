"""A transfer under way, as the backends here share it.

    running --end(DONE)-------------------------> done, settled
            --end(FAILED | TIMED_OUT | CANCELLED)-> over for the caller; the job is
                                                  interrupted and settles when it has left

The first end wins. A job runs on a thread of the backend and holds the memory until it
calls `leave`; only then may bytes no longer land.
"""

import threading
from collections.abc import Callable

from pdgate.transfer.base import State, Transfer, TransferError


class Interrupted(Exception):
    """For the job: the transfer has ended, nobody waits for the bytes any more."""


class Running(Transfer):
    """Attributes:
    over: It has ended.
    """

    def __init__(self, what: str, *, moves_bytes: bool = True) -> None:
        self.what = what
        self.state = State.RUNNING
        self.error: TransferError | None = None
        # One condition and no events: making these is most of what a small transfer costs.
        self._lock = threading.Condition(threading.Lock())
        self.over = False
        self._left = not moves_bytes
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
            self._lock.notify_all()
            callbacks, self._callbacks = self._callbacks, []
            interrupt, self._interrupt = self._interrupt, None
        if interrupt is not None and state is not State.DONE:
            interrupt()
        for callback in callbacks:
            callback(self)
        return True

    def on_interrupt(self, interrupt: Callable[[], None] | None) -> None:
        """For the job: how to wake it if the transfer ends early. Raises Interrupted."""
        with self._lock:
            if self.over:
                raise Interrupted
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
