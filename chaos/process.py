"""Programs that can be killed and started again, and that end with their block.

    command = ("pdgate", "engine", "--port", "8100", ...)
    async with running(command, ready="pdgate engine ready") as engine:
        await engine.kill()          # SIGKILL, and it is gone
        await engine.start()         # the same command, and it is ready

Each start leads a process group of its own, so what the program starts ends with it, and
nothing is ever ended by its name. Waiting is for a line of its output or for its end. Who is
killed inside the block cannot end them: they go on.
"""

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

GRACE_SECONDS = 10.0
START_SECONDS = 60.0
TAIL_LINES = 20
MAX_LINE_BYTES = 1 << 20


class ProgramFailed(Exception):
    """It ended, or said nothing, where it should have become ready; with its last words."""


class Program:
    """
    Attributes:
        ready_line: What it said when it became ready last.
    """

    def __init__(self, command: Sequence[str], ready: str, env: Mapping[str, str]) -> None:
        self.ready_line = ""
        self._command = tuple(command)
        self._ready = ready
        self._env = env
        self._process: Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was never started"
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def last_words(self) -> str:
        return "\n".join(self._tail)

    async def start(self) -> None:
        """Returns when it has said that it is ready. Raises ProgramFailed."""
        assert not self.runs, "it runs already"
        self._tail.clear()
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            limit=MAX_LINE_BYTES,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **self._env},
        )
        assert self._process.stdout is not None
        heard: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read(self._process.stdout, heard))
        try:
            async with asyncio.timeout(START_SECONDS):
                self.ready_line = await heard
        except TimeoutError:
            await self.kill()
            raise ProgramFailed(f"it never said {self._ready!r}:\n{self.last_words}") from None

    async def kill(self) -> None:
        """SIGKILL to it and to all that it started; returns when it is gone."""
        self._signal(signal.SIGKILL)
        await self._gone()

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL for what is left after a grace. Stopping twice is fine."""
        if self._process is None or self._reading is None:
            return
        self._signal(signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_SECONDS):
                await self._process.wait()
        # Also when it ended in time: something that it started may have outlived it.
        await self.kill()

    async def _gone(self) -> None:
        assert self._process is not None
        await self._process.wait()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait((self._reading,))
            # Its id may be somebody else's from now on.
            self._reading = None

    def _signal(self, number: signal.Signals) -> None:
        if self._reading is None:
            return
        # The id stays the group's own while any member lives.
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    async def _read(self, output: asyncio.StreamReader, heard: asyncio.Future[str]) -> None:
        """To the end, also when nobody waits: a full pipe would stop the program."""
        while raw := await output.readline():
            line = raw.decode(errors="replace").rstrip()
            self._tail.append(line)
            if line.startswith(self._ready) and not heard.done():
                heard.set_result(line)
        if not heard.done():
            said = self.last_words or "(nothing)"
            heard.set_exception(ProgramFailed(f"it ended before it was ready:\n{said}"))


@asynccontextmanager
async def running(
    command: Sequence[str], *, ready: str, env: Mapping[str, str] | None = None
) -> AsyncIterator[Program]:
    """A program that is ready; stopped at the end of the block. `ready` begins its line."""
    program = Program(command, ready, env or {})
    try:
        await program.start()
        yield program
    finally:
        await program.stop()
