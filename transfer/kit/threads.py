"""Threads that start as they are needed and stay: cheaper to hand work to than an executor.

Nobody is told of a result, and none of them keeps the process from ending.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue

Work = Callable[[], None]


class Threads:
    def __init__(self, name: str, most: int) -> None:
        """`most`: work beyond so many threads waits for one."""
        self._name = name
        self._most = most
        self._lock = threading.Lock()
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._threads = 0
        self._busy = 0
        self._closed = False

    def submit(self, work: Work) -> bool:
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
