"""The threads that move bytes, and how a transfer on them ends."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue

from pdgate.transfer.base import State, TransferError
from pdgate.transfer.runtime.running import RunningTransfer, TransferDeadlines, TransferInterrupted

# Many, because one that waits for a hung peer is taken until its deadline, and other peers
# must not wait with it.
MAX_THREADS = 64
CLOSE_SECONDS = 5.0

log = logging.getLogger(__name__)

Work = Callable[[RunningTransfer], None]
"""Returns when the bytes are where they belong. Raises TransferError, TransferInterrupted."""


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """How a transfer moves.

    Attributes:
        at_once: `work` waits for nothing, and takes less time than to wake a thread for it.
    """

    work: Work
    at_once: bool = False


class TransferJobs:
    """Runs one function per transfer on a thread, with a deadline for each."""

    def __init__(self, name: str) -> None:
        self._threads = Threads(f"pdgate-{name}", MAX_THREADS)
        self._deadlines = TransferDeadlines()
        self._lock = threading.Lock()
        self._alive: set[RunningTransfer] = set()
        self._closed = False

    def start(self, what: str, timeout_seconds: float, plan: TransferPlan) -> RunningTransfer:
        """Raises TransferError if we are closed."""
        if plan.at_once:
            return self._at_once(what, plan.work)
        transfer = self._track(RunningTransfer(what, waits=True), timeout_seconds)
        try:
            taken = self._threads.submit(lambda: run(transfer, plan.work))
        except RuntimeError as error:
            transfer.leave(TransferError(f"{what}: {error}"))
        else:
            if not taken:
                transfer.leave(TransferError("the backend is closed"))
        return transfer

    def expectation(self, what: str, timeout_seconds: float) -> RunningTransfer:
        """A transfer without a thread: another thread ends it, or its deadline does."""
        return self._track(RunningTransfer(what, moves_bytes=False), timeout_seconds)

    def close(self) -> None:
        """Returns when no byte moves any more (or after CLOSE_SECONDS per transfer)."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            alive = list(self._alive)
        for transfer in alive:
            transfer.end(State.FAILED, TransferError(f"{transfer.what}: the backend was closed"))
        self._threads.close()
        for transfer in alive:
            transfer.settle(CLOSE_SECONDS)
        self._deadlines.close()

    def _at_once(self, what: str, work: Work) -> RunningTransfer:
        if self._closed:
            raise TransferError("the backend is closed")
        transfer = RunningTransfer(what)
        run(transfer, work)
        return transfer

    def _track(self, transfer: RunningTransfer, timeout_seconds: float) -> RunningTransfer:
        with self._lock:
            if self._closed:
                raise TransferError("the backend is closed")
            self._alive.add(transfer)
        transfer.add_done_callback(lambda _: self._forget(transfer))
        try:
            self._deadlines.add(transfer, timeout_seconds)
        except RuntimeError as error:
            transfer.leave(TransferError(f"{transfer.what}: {error}"))
        return transfer

    def _forget(self, transfer: RunningTransfer) -> None:
        with self._lock:
            self._alive.discard(transfer)


def run(transfer: RunningTransfer, work: Work) -> None:
    try:
        transfer.begin()
        work(transfer)
    except TransferInterrupted:
        transfer.leave(transfer.error)
    except TransferError as error:
        transfer.leave(error)
    # A bug must not leave the owner of the transfer waiting, nor go unseen on a thread.
    except Exception as error:
        log.exception("%s broke", transfer.what)
        transfer.leave(TransferError(f"{transfer.what} broke: {error!r}"))
    else:
        transfer.leave()


class Threads:
    """Threads that start as they are needed and stay: cheaper to hand work to than an executor.

    Results are not reported, and no thread keeps the process from ending.
    """

    def __init__(self, name: str, most: int) -> None:
        """`most`: work beyond so many threads waits for one."""
        self._name = name
        self._most = most
        self._lock = threading.Lock()
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = 0
        self._busy = 0
        self._closed = False

    def submit(self, work: Callable[[], None]) -> bool:
        """`work` raises nothing. False if we are closed. Raises RuntimeError: no more threads."""
        with self._lock:
            if self._closed:
                return False
            if self._busy == self._threads < self._most:
                self._start()
            self._busy += 1
        self._work.put(work)
        return True

    def close(self) -> None:
        """They end when they have done what was submitted."""
        with self._lock:
            self._closed = True
            for _ in range(self._threads):
                self._work.put(None)

    def _start(self) -> None:
        name = f"{self._name}_{self._threads}"
        threading.Thread(target=self._run, name=name, daemon=True).start()
        self._threads += 1

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            with self._lock:
                self._busy -= 1
            # What it holds on to would stay until there is more to do.
            del work
