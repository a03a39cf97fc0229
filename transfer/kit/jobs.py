"""The threads that move bytes, and how a transfer on them ends."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from pdgate.transfer.base import State, TransferError
from pdgate.transfer.kit.deadlines import Deadlines
from pdgate.transfer.kit.running import Interrupted, Running
from pdgate.transfer.kit.threads import Threads

# Many, because one that waits for a hung peer is taken until its deadline, and other peers
# must not wait with it.
MAX_THREADS = 64
CLOSE_SECONDS = 5.0

log = logging.getLogger(__name__)

Work = Callable[[Running], None]
"""Returns when the bytes are where they belong. Raises TransferError, Interrupted."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a transfer moves.

    Attributes:
        at_once: `work` waits for nobody, and takes less time than to wake a thread for it.
    """

    work: Work
    at_once: bool = False


class Jobs:
    """Runs one function per transfer on a thread, with a deadline for each."""

    def __init__(self, name: str) -> None:
        self._threads = Threads(f"pdgate-{name}", MAX_THREADS)
        self._deadlines = Deadlines()
        self._lock = threading.Lock()
        self._alive: set[Running] = set()
        self._closed = False

    def start(self, what: str, timeout_seconds: float, plan: Plan) -> Running:
        """Raises TransferError if we are closed."""
        if plan.at_once:
            return self._at_once(what, plan.work)
        transfer = self._track(Running(what), timeout_seconds)
        try:
            taken = self._threads.submit(lambda: run(transfer, plan.work))
        except RuntimeError as error:
            transfer.leave(TransferError(f"{what}: {error}"))
        else:
            if not taken:
                transfer.leave(TransferError("the backend is closed"))
        return transfer

    def expectation(self, what: str, timeout_seconds: float) -> Running:
        """A transfer without a thread: somebody else ends it, or its deadline does."""
        return self._track(Running(what, moves_bytes=False), timeout_seconds)

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

    def _at_once(self, what: str, work: Work) -> Running:
        if self._closed:
            raise TransferError("the backend is closed")
        transfer = Running(what)
        run(transfer, work)
        return transfer

    def _track(self, transfer: Running, timeout_seconds: float) -> Running:
        with self._lock:
            if self._closed:
                raise TransferError("the backend is closed")
            self._alive.add(transfer)
        transfer.add_done_callback(lambda _: self._forget(transfer))
        self._deadlines.add(transfer, timeout_seconds)
        return transfer

    def _forget(self, transfer: Running) -> None:
        with self._lock:
            self._alive.discard(transfer)


def run(transfer: Running, work: Work) -> None:
    try:
        transfer.on_interrupt(None)
        work(transfer)
    except Interrupted:
        transfer.leave(transfer.error)
    except TransferError as error:
        transfer.leave(error)
    # A bug must not leave the owner of the transfer waiting, nor go unseen on a thread.
    except Exception as error:
        log.exception("%s broke", transfer.what)
        transfer.leave(TransferError(f"{transfer.what} broke: {error!r}"))
    else:
        transfer.leave()
