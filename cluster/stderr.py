"""Log lines on their way to stderr, written by a thread: what is logged never waits for it.

    log.info --> line --> at most MOST_BYTES --thread--> file descriptor
                   '-- dropped and counted, while there is more

The other end of the pipe may not be read, a terminal may be stopped, a disk may be full: the event
loop, and signals with it, would stand still in the middle of a line. What was dropped is counted in the
log as soon as that flows again. At the end of the process what is left has LAST_SECONDS.

What is logged may be an engine's word, or a stranger's (keys of a directory, reasons of refusals): it makes
no second line, and tells a terminal nothing (`OneLine`).
"""

import atexit
import logging
import os
import re
import select
import sys
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Final

from pdgate.cluster.printable import printable

MOST_BYTES: Final = 1 << 20
"""Of lines that wait: some thousand calls' lines."""
BATCH_BYTES: Final = 64 << 10
"""In one write, which is what a pipe holds on Linux. Source: pipe(7)."""
LAST_SECONDS: Final = 2.0


_begins_like_a_record = re.compile(r"^(?=\d|[A-Z]+:)", re.MULTILINE)
"""As a line of TEXT does (gateway/logs.py), or one of BASIC_FORMAT."""


class OneLine(logging.Formatter):
    """Formatter of text: a message has one line, and of a traceback none that looks like another record's."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: object) -> str:
        lines = super().formatException(ei).split("\n")  # type: ignore[arg-type]
        return _begins_like_a_record.sub("    ", "\n".join(map(printable, lines)))


class Writer:
    """
    Attributes:
        dropped: Lines that were not written.
    """

    def __init__(
        self, descriptor: int, told: Callable[[int], bytes], most_bytes: int = MOST_BYTES
    ) -> None:
        """`told` makes the line that says how many were dropped before the next one."""
        self.dropped = 0
        self._told = told
        self._descriptor = descriptor
        self._most_bytes = most_bytes
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._unsaid = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, line: bytes) -> None:
        with self._changed:
            if self._thread is None:
                # A daemon, as stderr that takes nothing must not keep the process alive.
                self._thread = threading.Thread(target=self._run, name="pdgate-log", daemon=True)
                self._thread.start()
            if self._unsaid and self._bytes < self._most_bytes // 2:
                number, self._unsaid = self._unsaid, 0
                self._append(self._told(number))
            if self._bytes + len(line) > self._most_bytes:
                self.dropped += 1
                self._unsaid += 1
                return
            self._append(line)

    def flush(self, seconds: float) -> bool:
        """Whether all has been written, after so long at most."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._bytes, seconds)

    def _append(self, line: bytes) -> None:
        self._lines.append(line)
        self._bytes += len(line)
        self._changed.notify_all()

    # In the thread.

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                batch = [self._lines.popleft()]
                size = len(batch[0])
                while self._lines and size + len(self._lines[0]) <= BATCH_BYTES:
                    batch.append(self._lines.popleft())
                    size += len(batch[-1])
            written = self._write(b"".join(batch))
            with self._changed:
                self._bytes -= size
                if not written:
                    self.dropped += len(batch)
                    self._unsaid += len(batch)
                self._changed.notify_all()

    def _write(self, data: bytes) -> bool:
        """False where it cannot be read any more (EPIPE), or there is no room (ENOSPC)."""
        left = memoryview(data)
        while left:
            try:
                # Waits here, and also where another process that shares it has made it non-blocking.
                select.select((), (self._descriptor,), ())
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:
                continue
            except OSError:
                return False
        return True


class Stderr(logging.Handler):
    """A handler of log records that never blocks."""

    def __init__(self, descriptor: int = 2, most_bytes: int = MOST_BYTES) -> None:
        super().__init__()
        self.writer = Writer(descriptor, self._told, most_bytes)

    def _told(self, number: int) -> bytes:
        said = "%d lines of the log were dropped, as stderr did not take them"
        return self.line_of(
            logging.LogRecord(__name__, logging.WARNING, __file__, 0, said, (number,), None)
        )

    def line_of(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(errors="backslashreplace")

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.line_of(record)
        # As of an argument whose text cannot be made; the caller must not fail over it.
        except Exception as error:  # noqa: BLE001
            name = type(error).__name__
            line = (
                f"a line of {record.name} cannot be shown ({name}): {record.msg!r:.200}\n".encode(
                    errors="backslashreplace"
                )
            )
        self.writer.put(line)


def log_to_stderr(level: str, formatter: logging.Formatter | None = None) -> None:
    """Log to stderr in the whole process, threads and the end by an exception included; a second time changes nothing."""
    root = logging.getLogger()
    if root.handlers:
        return
    handler = Stderr()
    handler.setFormatter(formatter or OneLine(logging.BASIC_FORMAT))
    root.addHandler(handler)
    root.setLevel(level.upper())
    # logging has a hook of its own at the end, which was registered before and so comes after this one.
    atexit.register(handler.writer.flush, LAST_SECONDS)
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread


def lines_dropped() -> int:
    """Lines that this process has dropped so far."""
    handlers = logging.getLogger().handlers
    return sum(one.writer.dropped for one in handlers if isinstance(one, Stderr))


def _uncaught(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
    logging.getLogger(__name__).critical("the process ends", exc_info=(kind, error, at))


def _uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is None or isinstance(args.exc_value, SystemExit):
        return
    name = args.thread.name if args.thread is not None else "a thread"
    caught = (args.exc_type, args.exc_value, args.exc_traceback)
    logging.getLogger(__name__).critical("the thread %s has ended", name, exc_info=caught)
