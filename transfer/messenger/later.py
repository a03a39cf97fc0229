"""What has to wait for an event of the device, in the order that it was asked for, on one thread.

    model's thread    run(event, work) ... returns at once
    our thread        waits for the event, then works

The events come from the stream that computes, so they happen in this order too.
"""

import logging
import math
import threading
from collections.abc import Callable
from queue import SimpleQueue

from pdgate.transfer.base import TransferError
from pdgate.transfer.device.base import DeviceEvent, wait

log = logging.getLogger(__name__)

Work = Callable[[TransferError | None], None]
"""Called once: without an error when the event has happened, with it when it never will."""


class Later:
    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._asked: SimpleQueue[tuple[DeviceEvent, Work] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def run(self, after: DeviceEvent, work: Work) -> None:
        """Nothing is done any more once it is closed. Raises RuntimeError: no more threads."""
        with self._lock:
            if self._closed:
                return
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                # One that could not be started is not it.
                self._thread = thread
            self._asked.put((after, work))

    def close(self) -> None:
        """Returns when nothing of it runs; what still waits is dropped."""
        with self._lock:
            self._closed = True
            self._asked.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            after, work = asked
            try:
                error = None
                if not wait(after, math.inf, lambda: self._closed):
                    return
            except TransferError as lost:
                error = lost
            try:
                work(error)
            # One request's must not keep the others waiting for ever.
            except Exception:
                log.exception("%s: what waited for an event broke", self._name)
            # Both hold on to a request.
            del asked, after, work
