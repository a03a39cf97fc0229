"""Processes: programs that can be killed and started again, and that surely end with their block.

    command = ("pdgate", "engine", "--port", "8100", ...)
    async with running(command, ready="pdgate engine ready") as engine:
        await engine.kill()          # SIGKILL, and it is gone
        await engine.start()         # the same command, and it is ready
        await until(engine_is_well, "an engine that is well", within_seconds=30)

Each start leads a process group of its own: Ctrl-C in the terminal reaches us alone, what the
program starts ends with it, and nothing is ever ended by its name. The end is SIGTERM, a grace
and SIGKILL, and is waited for. A program that dies inside the block leaves the block to go on.

Nothing is concluded from how long something took; limits are for what will never come.
"""

import asyncio
import os
import re
import shlex
import signal
import socket
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from tempfile import gettempdir
from textwrap import indent
from typing import NoReturn, TypeVar

START_SECONDS = 60.0
GRACE_SECONDS = 10.0
LAST_WORDS_SECONDS = 1.0
PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.2
LONGER = 1.2
TAIL_LINES = 20
MAX_LINE_BYTES = 1 << 20

REDIS = "redis-server"

T = TypeVar("T")


class ProcessFailed(Exception):
    """A program that does not start, is not ready in time, or ended by itself; with its last words."""


class NeverHappened(AssertionError):
    """What was waited for does not hold at the limit."""


class Program:
    """A command that is a process from each start to the next end.

    Attributes:
        name: The subject of messages about it.
        announced: How `ready` matched the line with which it became ready last.
    """

    announced: re.Match[str]

    def __init__(
        self,
        command: Sequence[str],
        ready: str | re.Pattern[str] = "",
        *,
        name: str = "",
        env: Mapping[str, str] | None = None,
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        """`ready` begins the line with which it is ready; a pattern matches it from its beginning."""
        self.name = name or shlex.join(command)
        self._command = tuple(command)
        self._ready = ready if isinstance(ready, re.Pattern) else re.compile(re.escape(ready))
        self._env = env or {}
        self._grace_seconds = grace_seconds
        self._process: Process | None = None
        self._output = _Output(self._hear)
        self._heard: asyncio.Future[re.Match[str]] | None = None
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)

    @property
    def pid(self) -> int:
        return self._started.pid

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def ready_line(self) -> str:
        return self.announced.string

    @property
    def last_words(self) -> str:
        return "\n".join(self._tail)

    async def start(self) -> None:
        """Return when it is ready; raise ProcessFailed, with nothing of it left, if it will not be."""
        await self.launch()
        try:
            await self.ready()
        except ProcessFailed:
            await self.kill()
            raise

    async def launch(self) -> None:
        """Make it a process, which may be ready later; raise ProcessFailed if there is none."""
        assert not self.runs, "it runs already"
        # If it ended by itself, something that it started may have outlived it.
        await self.kill()
        self._tail.clear()
        self._heard = asyncio.get_running_loop().create_future()
        self._output = _Output(self._hear)
        end_of_process = await self._output.open()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=DEVNULL,
                stdout=end_of_process,
                stderr=STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self._env},
            )
        except BaseException as error:
            await self._output.close()
            if isinstance(error, OSError):
                raise ProcessFailed(f"{self.name} cannot be started: {error}") from None
            raise
        finally:
            os.close(end_of_process)

    async def ready(self) -> re.Match[str]:
        """Return how `ready` matched; raise ProcessFailed if it will not."""
        assert self._heard is not None, "it was never started"
        self.announced = await self.unless_it_ends(asyncio.shield(self._heard))
        return self.announced

    async def unless_it_ends(self, awaited: Awaitable[T]) -> T:
        """Return what `awaited` gives; raise ProcessFailed if the end or START_SECONDS come first."""
        hoped = asyncio.ensure_future(awaited)
        feared = asyncio.create_task(self.ended())
        try:
            done, _ = await asyncio.wait(
                (hoped, feared), timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if hoped in done:
                return hoped.result()
            if feared in done:
                feared.result()
            self._fail(f"was not ready after {START_SECONDS:.0f} s")
        finally:
            hoped.cancel()
            feared.cancel()

    async def ended(self) -> NoReturn:
        """Wait for its end, and raise ProcessFailed with the exit code or the signal."""
        code = await self._started.wait()
        # What it started may hold its output open, so the end of that is no certain thing.
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await self._output.over.wait()
        self._fail(f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}")

    async def kill(self) -> None:
        """Send SIGKILL to it and to all that it started, and return when it is gone."""
        if self._output.is_open:
            self._signal(signal.SIGKILL)
            await self._started.wait()
            # From now on its id may be another program's, and is sent no signal.
            await self._output.close()

    async def stop(self) -> None:
        """Send SIGTERM, and SIGKILL for what is left after the grace. Stopping twice is fine."""
        if not self._output.is_open:
            return
        self._signal(signal.SIGTERM)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._grace_seconds):
                    await self._started.wait()
        finally:
            # Also when it ended in time: something that it started may have outlived it. And when
            # the waiting is cancelled, which must not leave it behind.
            await self.kill()

    @property
    def _started(self) -> Process:
        assert self._process is not None, "it was never started"
        return self._process

    def _signal(self, number: signal.Signals) -> None:
        # The id stays the group's own while any member lives.
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _hear(self, line: str) -> None:
        self._tail.append(line)
        found = self._ready.match(line)
        if found and self._heard is not None and not self._heard.done():
            self._heard.set_result(found)

    def _fail(self, how: str) -> NoReturn:
        said = indent(self.last_words or "(nothing)", "    ")
        raise ProcessFailed(f"{self.name} {how}. The last that it said:\n{said}")


class _Output(asyncio.Protocol):
    """The lines of a pipe, read as they come and to the end: a full one would stop the program.

    Not asyncio's own PIPE: with that, a process has not ended while anything that it started
    still holds its output open.

    Attributes:
        over: Nothing comes any more.
    """

    def __init__(self, hear: Callable[[str], None]) -> None:
        self.over = asyncio.Event()
        self._hear = hear
        self._unfinished = b""
        self._pipe: asyncio.ReadTransport | None = None

    @property
    def is_open(self) -> bool:
        return self._pipe is not None

    async def open(self) -> int:
        """Return the end that a process writes to."""
        ours, theirs = os.pipe()
        try:
            self._pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: self, os.fdopen(ours, "rb")
            )
        except BaseException:
            os.close(theirs)
            raise
        return theirs

    async def close(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
            await self.over.wait()

    def data_received(self, data: bytes) -> None:
        *lines, unfinished = (self._unfinished + data).split(b"\n")
        self._unfinished = unfinished[-MAX_LINE_BYTES:]
        for line in lines:
            self._hear(line.decode(errors="replace").rstrip())

    def connection_lost(self, _: Exception | None) -> None:
        if self._unfinished:
            self._hear(self._unfinished.decode(errors="replace").rstrip())
        self.over.set()


def own_redis() -> tuple[str, Sequence[str]]:
    """The address of a Redis that does not run yet, on loopback and with nothing of it on disk, and the command that
    starts it.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        host, port = probe.getsockname()
    command = (
        REDIS, "--bind", host, "--port", str(port),
        "--save", "", "--appendonly", "no", "--dir", gettempdir(),
    )  # fmt: skip
    return f"redis://{host}:{port}/0", command


@asynccontextmanager
async def running(
    command: Sequence[str],
    *,
    ready: str | re.Pattern[str],
    name: str = "",
    env: Mapping[str, str] | None = None,
    grace_seconds: float = GRACE_SECONDS,
) -> AsyncIterator[Program]:
    """A program that is ready, and is stopped at the end of the block."""
    program = Program(command, ready, name=name, env=env, grace_seconds=grace_seconds)
    try:
        await program.start()
        yield program
    finally:
        await program.stop()


@asynccontextmanager
async def stopped_together() -> AsyncIterator[list[Program]]:
    """A list of programs, which are stopped all at once at the end of the block."""
    programs: list[Program] = []
    try:
        yield programs
    finally:
        async with asyncio.TaskGroup() as group:
            for program in programs:
                group.create_task(program.stop())


async def until(question: Callable[[], Awaitable[T]], what: str, within_seconds: float = 60.0) -> T:
    """Return the first answer that is true; raise NeverHappened with the last one."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_seconds
    pause = PAUSE_SECONDS
    while not (answer := await question()):
        if loop.time() > deadline:
            raise NeverHappened(f"waited {within_seconds} s in vain for {what}: {answer!r}")
        await asyncio.sleep(pause)
        # What is asked is often busy with what is waited for.
        pause = min(LONGER * pause, LONGEST_PAUSE_SECONDS)
    return answer
