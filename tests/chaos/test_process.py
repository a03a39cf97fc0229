"""Programs end when they are told to, start again, and leave nothing behind."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from pdgate.chaos import ProgramFailed, running, until

GIVE_UP_SECONDS = 30.0
WAITS = "import signal; print('ready', flush=True); signal.pause()"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WAITS
WITH_A_CHILD = (
    "import os, signal\n"
    "child = os.fork()\n"
    "if child: print('ready', child, flush=True)\n"
    "signal.pause()"
)


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def is_gone(pid: int) -> bool:
    """It is no process any more, or a dead one that init has not asked after yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


async def gone(pid: int) -> bool:
    return is_gone(pid)


async def test_a_killed_program_is_gone_and_starts_again() -> None:
    async with asyncio.timeout(GIVE_UP_SECONDS), running(python(WAITS), ready="ready") as program:
        first = program.pid
        await program.kill()
        assert not program.runs
        with pytest.raises(ProcessLookupError):
            os.kill(first, 0)

        await program.start()

        assert program.runs
        assert program.pid != first
    assert not program.runs


async def test_what_it_started_dies_with_it() -> None:
    async with (
        asyncio.timeout(GIVE_UP_SECONDS),
        running(python(WITH_A_CHILD), ready="ready") as program,
    ):
        child = int(program.ready_line.split()[1])
        await program.kill()

        await until(lambda: gone(child), "the end of the child")


async def test_a_program_that_does_not_become_ready_fails_with_its_last_words() -> None:
    with pytest.raises(ProgramFailed, match="no such thing"):
        async with running(python("print('no such thing')"), ready="ready"):
            raise AssertionError("it was never ready")


async def test_a_program_that_will_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdgate.chaos.process.GRACE_SECONDS", 0.1)
    async with asyncio.timeout(GIVE_UP_SECONDS):
        async with running(python(STUBBORN), ready="ready") as program:
            pass
        assert not program.runs


async def test_a_program_that_died_by_itself_can_be_stopped() -> None:
    async with asyncio.timeout(GIVE_UP_SECONDS):
        async with running(python(WAITS), ready="ready") as program:
            os.kill(program.pid, signal.SIGKILL)
        assert not program.runs
