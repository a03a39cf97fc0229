"""An interrupt of a thread, whatever it waits for, now or as soon as it starts to wait."""

import threading
from collections.abc import Callable

from pdgate.transfer.messenger.errors import HandOverError, Why


class Interrupt:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wake: Callable[[], None] | None = None
        self.fired = False

    def arm(self, wake: Callable[[], None] | None) -> None:
        """Raises HandOverError if it has fired."""
        with self._lock:
            self._wake = wake
            if self.fired:
                raise HandOverError(Why.CANCELLED, "the request was aborted")

    def fire(self) -> None:
        with self._lock:
            self.fired = True
            wake = self._wake
        if wake is not None:
            wake()
