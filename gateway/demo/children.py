"""Processes that surely end.

Each child leads a process group of its own: Ctrl-C in the terminal reaches us alone, and
what a child starts ends with it. Leaving the block ends all of them: SIGTERM, a grace,
SIGKILL, and their exit is waited for.
"""

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

GRACE_SECONDS = 5.0
LAST_WORDS_SECONDS = 1.0
TAIL_LINES = 20
CHUNK_BYTES = 1 << 16


class ChildDied(Exception):
    """A child ended on its own; the message carries the end of its log."""


class Child:
    """One running process, its output read as it comes.

    Attributes:
        ready: The first line that began with `announces`; none if that is empty.
    """

    def __init__(
        self,
        name: str,
        process: Process,
        log: asyncio.StreamReader,
        pipe: asyncio.ReadTransport,
        announces: str,
    ) -> None:
        self.name = name
        self.ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._process = process
        self._log = log
        self._pipe = pipe
        self._announces = announces
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._reader = asyncio.create_task(self._read(), name=f"log of {name}")

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ended(self) -> None:
        """Waits for its end and raises ChildDied: no child of ours ends by itself."""
        code = await self._process.wait()
        # What it started may hold its output open, so the end of that is no certain thing.
        await asyncio.wait((self._reader,), timeout=LAST_WORDS_SECONDS)
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        said = "\n".join(f"    {line}" for line in self._tail) or "    (nothing)"
        raise ChildDied(f"{self.name} {how}. The last that it said:\n{said}")

    async def stop(self) -> None:
        """Ends the whole group and waits for it."""
        self._signal(signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_SECONDS):
                await self._process.wait()
        # Also when it ended in time: something that it started may have outlived it.
        self._signal(signal.SIGKILL)
        await self._process.wait()
        self._reader.cancel()
        await asyncio.wait((self._reader,))
        self._pipe.close()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    async def _read(self) -> None:
        unfinished = b""
        while chunk := await self._log.read(CHUNK_BYTES):
            *lines, unfinished = (unfinished + chunk).split(b"\n")
            for line in lines:
                self._hear(line)
        if unfinished:
            self._hear(unfinished)

    def _hear(self, raw_line: bytes) -> None:
        line = raw_line.decode(errors="replace").rstrip()
        self._tail.append(line)
        if self._announces and line.startswith(self._announces) and not self.ready.done():
            self.ready.set_result(line)


class Children:
    """Starts children, and ends them all when the block ends."""

    def __init__(self) -> None:
        self._all: list[Child] = []

    @property
    def any(self) -> bool:
        """Whether one was started."""
        return bool(self._all)

    async def start(self, name: str, command: Sequence[str], announces: str = "") -> Child:
        log, pipe, end_of_child = await _pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=DEVNULL,
                stdout=end_of_child,
                stderr=STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        except BaseException:
            pipe.close()
            raise
        finally:
            os.close(end_of_child)
        child = Child(name, process, log, pipe, announces)
        self._all.append(child)
        return child

    async def any_ended(self) -> None:
        """Waits until one ends by itself, and raises its ChildDied in a group."""
        async with asyncio.TaskGroup() as group:
            for child in self._all:
                group.create_task(child.ended())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        async with asyncio.TaskGroup() as group:
            for child in self._all:
                group.create_task(child.stop())


async def _pipe() -> tuple[asyncio.StreamReader, asyncio.ReadTransport, int]:
    """What is read from, its transport, and the end that a child writes to.

    Not asyncio's own PIPE: with that, a process has not ended while anything that it
    started still holds its output open.
    """
    ours, theirs = os.pipe()
    log = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(log), os.fdopen(ours, "rb")
    )
    return log, transport, theirs
