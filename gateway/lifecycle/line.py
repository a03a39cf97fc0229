"""Line between a parent and one of its workers, in threads: neither side waits for the other.

    parent  --ping, prepare, commit, abandon, answer-->  worker
            <--pong, ready, prepared, ask, drain------

    ping, pong                    whether the worker's interpreter still runs
    ready                         the worker is built, and takes other settings from now on
    prepare number settings       can you take these?  -->  prepared number why   (empty: yes)
    commit number, abandon why    all workers can; one of them cannot
    ask ticket, answer ticket keys why     POST /admin/reload at a worker
    drain                         POST /admin/drain at a worker

Each end is held by one process alone, so the kernel ends the line with either of them.
"""

import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Final

Message = tuple[Any, ...]
"""What it is, and what belongs to it."""

PING: Final = "ping"
PONG: Final = "pong"
READY: Final = "ready"
PREPARE: Final = "prepare"
PREPARED: Final = "prepared"
COMMIT: Final = "commit"
ABANDON: Final = "abandon"
ASK: Final = "ask"
ANSWER: Final = "answer"
DRAIN: Final = "drain"


class ControlLine:
    """One end."""

    def __init__(
        self, connection: "Connection[Any, Any]", heard: Callable[[Message | None], None]
    ) -> None:
        """`heard` gets each message, and None at the end, in a thread of the line."""
        self._connection = connection
        self._heard = heard
        self._waiting: SimpleQueue[Message | None] = SimpleQueue()
        for run in (self._read, self._write):
            threading.Thread(target=run, name="pdgate-line", daemon=True).start()

    def say(self, *message: Any) -> None:
        self._waiting.put(message)

    def close(self) -> None:
        """What waits is still written, if the other end takes it."""
        self._waiting.put(None)

    def _read(self) -> None:
        while True:
            try:
                message = self._connection.recv()
            # The other process has ended, or we have closed.
            except (EOFError, OSError):
                break
            self._heard(message)
        self._heard(None)

    def _write(self) -> None:
        while (message := self._waiting.get()) is not None:
            try:
                self._connection.send(message)
            except OSError:
                # It is not heard; the reading thread reports that.
                return
