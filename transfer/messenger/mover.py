"""Movers of P's pages into D's memory. Posting a write never waits for one.

    threads     ThreadMover: in this process, where the interpreter's lock is shared with
                compute; for memory that cannot be shared, and for tests
    a process   ProcessMover (process_mover.py): compute only posts

`done` is called once per write, on any thread, and only when no byte of it moves any more.
"""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from pdgate.transfer.base import (
    Backend,
    Descriptor,
    Range,
    Region,
    Transfer,
    TransferError,
    place,
)

SETTLE_LOG_SECONDS = 10.0
CLOSE_SECONDS = 10.0

Done = Callable[[TransferError | None], None]

log = logging.getLogger(__name__)


class Destination(ABC):
    """The memory of one peer, for one push."""

    @abstractmethod
    def write(self, ranges: Sequence[Range], until: float, immediate: int, done: Done) -> None:
        """Copies, then counts `immediate` there once. `until` is of time.monotonic()."""

    @abstractmethod
    def cancel(self) -> None:
        """Gives up what it writes, and is yet to write: `done` comes as soon as no byte of it moves
        any more. For a write that its backend cannot break off that is when it ends by itself.
        """

    @abstractmethod
    def close(self) -> None:
        """After the last `done`; lets go of the peer's connection."""


class Mover(ABC):
    @abstractmethod
    def open(self, remote: Descriptor, line: int) -> Destination:
        """`line` is a file descriptor of the connection on which the peer asked.

        Whatever process writes keeps a copy of it, so that the peer sees the end of the
        connection only when no process is left that could write. Raises OSError, TransferError.
        """

    @abstractmethod
    def close(self) -> None:
        """No byte moves afterwards, and every wait has ended."""


class ThreadMover(Mover):
    def __init__(self, backend: Backend, region: Region) -> None:
        self._backend = backend
        self._region = region
        self._changed = threading.Condition()
        self._alive: dict[Transfer, _Here] = {}

    def open(self, remote: Descriptor, line: int) -> Destination:
        self._backend.check_pair(self._region.place, place(remote))
        return self.to(remote)

    def to(self, remote: Descriptor) -> Destination:
        """What is opened for a write that checks by itself whether it can be."""
        return _Here(self, remote)

    def write(
        self, to: "_Here", ranges: Sequence[Range], until: float, immediate: int, done: Done
    ) -> None:
        try:
            if to.cancelled:
                raise TransferError("it was cancelled before it began")
            transfer = self._backend.write(
                self._region, to.remote, ranges, max(0.0, until - time.monotonic()), immediate
            )
        except (TransferError, ValueError) as error:
            done(error if isinstance(error, TransferError) else TransferError(str(error)))
            return
        with self._changed:
            self._alive[transfer] = to
            cancelled = to.cancelled

        def ended() -> None:
            done(transfer.error)
            with self._changed:
                del self._alive[transfer]
                self._changed.notify_all()

        when_settled(transfer, ended)
        if cancelled:
            transfer.cancel()

    def cancel(self, to: "_Here") -> None:
        with self._changed:
            to.cancelled = True
            alive = [transfer for transfer, where in self._alive.items() if where is to]
        for transfer in alive:
            transfer.cancel()

    def close(self) -> None:
        with self._changed:
            alive = list(self._alive)
        for transfer in alive:
            transfer.cancel()
        with self._changed:
            if not self._changed.wait_for(lambda: not self._alive, CLOSE_SECONDS):
                log.error("%d writes do not end", len(self._alive))


class _Here(Destination):
    def __init__(self, mover: ThreadMover, remote: Descriptor) -> None:
        self._mover = mover
        self.remote = remote
        self.cancelled = False

    def write(self, ranges: Sequence[Range], until: float, immediate: int, done: Done) -> None:
        self._mover.write(self, ranges, until, immediate, done)

    def cancel(self) -> None:
        self._mover.cancel(self)

    def close(self) -> None:
        return


def when_settled(transfer: Transfer, act: Callable[[], None]) -> None:
    """Calls `act` once no byte of the transfer moves any more, on any thread."""

    def wait() -> None:
        while not transfer.settle(SETTLE_LOG_SECONDS):
            log.warning("a write that failed may still move bytes: %s", transfer.error)
        act()

    def ended(_: Transfer) -> None:
        if transfer.settled:
            act()
        else:
            # Rare: it failed or was too late, and a thread still sits in a system call.
            try:
                threading.Thread(target=wait, name="pdgate-settle", daemon=True).start()
            except RuntimeError:
                # No more threads, so this one waits: unsaid, the pages would stay for ever.
                wait()

    transfer.add_done_callback(ended)
