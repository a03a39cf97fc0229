"""P's contexts on their way: posting one never waits, if need be it queues for a slot."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pdgate.transfer.base import Backend, Descriptor, Range, TransferError
from pdgate.transfer.messenger import context
from pdgate.transfer.messenger.context import Context
from pdgate.transfer.messenger.mover import Destination, Done, ThreadMover
from pdgate.transfer.messenger.slots import Slots

SLOTS = 32


@dataclass(frozen=True, slots=True, eq=False)
class _Letter:
    said: bytes
    way: Destination
    offset: int
    until: float
    immediate: int
    done: Done


class ContextOutbox:
    """Contexts are small and few, so threads of this process move them."""

    def __init__(self, backend: Backend, max_bytes: int, slots: int = SLOTS) -> None:
        """Raises ValueError, OSError, TransferError."""
        self._slots = Slots(backend, max_bytes, slots)
        self._mover = ThreadMover(backend, self._slots.region)
        self._lock = threading.Lock()
        self._queue: deque[_Letter] = deque()
        self._sending = False
        self._closed = False

    @property
    def max_bytes(self) -> int:
        return self._slots.max_bytes

    @property
    def free(self) -> int:
        """How many slots are not in use."""
        return self._slots.free

    def send(
        self,
        said: Context,
        remote: Descriptor,
        offset: int,
        until: float,
        immediate: int,
        done: Done,
    ) -> Callable[[], None]:
        """Into the peer's slot at `offset`, counted once. `until` and `done` as in a mover's.

        What it returns gives it up, as a destination's `cancel` does.
        """
        way = self._mover.to(remote)
        size = len(said.data)
        if size > self.max_bytes:
            done(TransferError(f"a context of {size} bytes, {self.max_bytes} declared"))
            return way.cancel
        letter = _Letter(context.pack(said), way, offset, until, immediate, done)
        with self._lock:
            closed = self._closed
            if not closed:
                self._queue.append(letter)
        if closed:
            done(TransferError("the outbox is closed"))
        else:
            self._send_on()
        return partial(self._cancel, letter)

    def close(self) -> None:
        """No byte moves afterwards, and every wait has ended."""
        with self._lock:
            self._closed = True
            left, self._queue = self._queue, deque()
        for letter in left:
            letter.done(TransferError("the outbox is closed"))
        self._mover.close()
        self._slots.close()

    def _cancel(self, letter: _Letter) -> None:
        letter.way.cancel()
        with self._lock:
            waits = letter in self._queue
            if waits:
                self._queue.remove(letter)
        if waits:
            letter.done(TransferError("the context was cancelled"))

    def _send_on(self) -> None:
        """As many as there are slots for."""
        with self._lock:
            # The thread that is at it, perhaps this one further up, looks once more.
            if self._sending:
                return
            self._sending = True
        while True:
            with self._lock:
                ours = self._slots.take() if self._queue else None
                if ours is None:
                    self._sending = False
                    return
                letter = self._queue.popleft()
            self._slots.view(ours)[: len(letter.said)] = letter.said
            letter.way.write(
                [Range(ours, letter.offset, len(letter.said))],
                letter.until,
                letter.immediate,
                partial(self._ended, ours, letter.done),
            )

    def _ended(self, ours: int, done: Done, error: TransferError | None) -> None:
        self._slots.give_back(ours)
        done(error)
        self._send_on()
