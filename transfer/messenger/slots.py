"""Registered memory in slots of one size, for contexts: a slot has one user at a time."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pdgate.transfer.base import Backend, Region
from pdgate.transfer.messenger import context
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.interrupt import Interrupt


class Slots:
    """
    Attributes:
        max_bytes: Of one context.
    """

    def __init__(self, backend: Backend, max_bytes: int, count: int) -> None:
        """Raises ValueError, OSError, TransferError."""
        if max_bytes < 0 or count < 1:
            raise ValueError(f"{count} slots for contexts of {max_bytes} bytes")
        self.max_bytes = max_bytes
        self.slot_bytes = context.slot_bytes(max_bytes)
        self.region: Region = backend.allocate(count * self.slot_bytes)
        self._changed = threading.Condition()
        self._free = [number * self.slot_bytes for number in range(count)]

    @property
    def free(self) -> int:
        with self._changed:
            return len(self._free)

    def view(self, offset: int) -> memoryview:
        return self.region.memory[offset : offset + self.slot_bytes]

    def take(self) -> int | None:
        """Offset of a slot; None if all are taken."""
        with self._changed:
            return self._free.pop() if self._free else None

    def give_back(self, offset: int) -> None:
        """No byte of it moves any more."""
        with self._changed:
            self._free.append(offset)
            self._changed.notify()

    @contextmanager
    def taken(self, until: float, interrupt: Interrupt) -> Iterator[int]:
        """Waits for a slot, to a time of time.monotonic(). Raises HandOverError."""
        interrupt.arm(self._stir)
        with self._changed:
            self._changed.wait_for(
                lambda: self._free or interrupt.fired, max(0.0, until - time.monotonic())
            )
            if interrupt.fired:
                raise HandOverError(Why.CANCELLED, "nobody waits for it")
            if not self._free:
                raise HandOverError(Why.TOO_LATE, "no room for a context became free in time")
            offset = self._free.pop()
        # What the last one left must not pass for what did not come.
        self.view(offset)[:] = bytes(self.slot_bytes)
        try:
            yield offset
        finally:
            self.give_back(offset)

    def close(self) -> None:
        self.region.close()

    def _stir(self) -> None:
        with self._changed:
            self._changed.notify_all()
