"""Engines, gateways and a Redis as processes that surely end.

Each leads a process group of its own: Ctrl-C in the terminal reaches us alone. At the end of the
block they get SIGTERM, a grace, and SIGKILL; what they serve is ours alone, so nobody misses it.
"""

import asyncio
import os
import re
import signal
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

START_SECONDS = 60.0
GRACE_SECONDS = 2.0
TAIL_LINES = 20


class ProcessFailed(Exception):
    """It did not start, or ended by itself; the message has the last that it said."""


class Process:
    def __init__(self, name: str, process: asyncio.subprocess.Process, announces: str) -> None:
        self.name = name
        self._process = process
        self._announces = re.compile(announces)
        self._ready: asyncio.Future[re.Match[str]] = asyncio.get_running_loop().create_future()
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._reader = asyncio.create_task(self._read(), name=f"output of {name}")

    @property
    def ended(self) -> bool:
        return self._process.returncode is not None

    async def ready(self) -> re.Match[str]:
        """What it announced. Raises ProcessFailed."""
        await asyncio.wait(
            (self._ready, self._reader),
            timeout=START_SECONDS,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if self._ready.done():
            return self._ready.result()
        how = "ended" if self._reader.done() else f"was not ready after {START_SECONDS:.0f} s"
        raise ProcessFailed(f"{self.name} {how}. The last that it said:\n{self._said()}")

    async def stop(self) -> None:
        self._signal(signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_SECONDS):
                await self._process.wait()
        # Also when it ended in time: something that it started may have outlived it.
        self._signal(signal.SIGKILL)
        await self._process.wait()
        await asyncio.wait((self._reader,))
        self._ready.cancel()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for raw in self._process.stdout:
            line = raw.decode(errors="replace").rstrip()
            self._tail.append(line)
            if not self._ready.done() and (found := self._announces.search(line)):
                self._ready.set_result(found)

    def _said(self) -> str:
        return "\n".join(f"    {line}" for line in self._tail) or "    (nothing)"


@asynccontextmanager
async def running(name: str, command: Sequence[str], announces: str) -> AsyncIterator[Process]:
    """Runs while the block runs. `announces`: matches the line with which it is ready."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    except OSError as error:
        raise ProcessFailed(f"{name} cannot be started: {error}") from None
    child = Process(name, process, announces)
    try:
        yield child
    finally:
        # Also when the kit was told to stop, which must not leave engines behind.
        await asyncio.shield(child.stop())
