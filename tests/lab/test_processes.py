"""Programs end when they are told to, start again, say why they failed, and leave nothing behind."""

import asyncio
import os
import re
import signal
import sys
from functools import partial
from pathlib import Path

import pytest

from pdgate.lab import processes
from pdgate.lab.processes import (
    NeverHappened,
    ProcessFailed,
    Program,
    running,
    stopped_together,
    until,
)
from tests.support import waiting

GIVE_UP_SECONDS = waiting.PATIENCE_SECONDS
WAITS = "import signal; print('ready', flush=True); signal.pause()"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WAITS
WITH_A_CHILD = (
    "import os, signal\n"
    "child = os.fork()\n"
    "if child: print('ready', child, flush=True)\n"
    "signal.pause()"
)
STUBBORN_FAMILY = (
    "import os, signal\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "child = os.fork()\n"
    "if child: print('ready', child, flush=True)\n"
    "while True: signal.pause()"
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


async def test_what_a_dead_program_started_ends_before_the_next_start() -> None:
    async with (
        asyncio.timeout(GIVE_UP_SECONDS),
        running(python(WITH_A_CHILD), ready="ready") as program,
    ):
        child = int(program.ready_line.split()[1])
        os.kill(program.pid, signal.SIGKILL)
        with pytest.raises(ProcessFailed, match="was killed by signal 9"):
            await program.ended()

        await program.start()

        assert int(program.ready_line.split()[1]) != child
        await until(lambda: gone(child), "the end of the child")


async def test_a_program_that_does_not_become_ready_fails_with_its_last_words() -> None:
    with pytest.raises(ProcessFailed, match="no such thing"):
        async with running(python("print('no such thing')"), ready="ready"):
            raise AssertionError("it was never ready")


async def test_a_program_that_never_says_that_it_is_ready_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "START_SECONDS", 0.05)
    program = Program(python(STUBBORN), ready="never", name="the engine")

    async with asyncio.timeout(GIVE_UP_SECONDS):
        with pytest.raises(ProcessFailed, match="the engine was not ready after"):
            await program.start()

    assert not program.runs


async def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(ProcessFailed, match=r"the engine cannot be started: .*no-such-program"):
        async with running(("no-such-program",), ready="ready", name="the engine"):
            raise AssertionError("it was never ready")


async def test_a_program_that_will_not_end_is_killed() -> None:
    async with asyncio.timeout(GIVE_UP_SECONDS):
        async with running(python(STUBBORN), ready="ready", grace_seconds=0.1) as program:
            pass
        assert not program.runs


async def test_a_program_whose_end_is_not_waited_for_ends() -> None:
    """Being told twice to stop leaves nothing behind."""
    program = Program(python(STUBBORN), ready="ready", grace_seconds=GIVE_UP_SECONDS)
    async with asyncio.timeout(GIVE_UP_SECONDS):
        await program.start()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await program.stop()

    assert not program.runs


async def test_a_program_that_died_by_itself_can_be_stopped() -> None:
    async with asyncio.timeout(GIVE_UP_SECONDS):
        async with running(python(WAITS), ready="ready") as program:
            os.kill(program.pid, signal.SIGKILL)
        assert not program.runs


async def test_the_first_line_that_begins_so_says_that_it_is_ready() -> None:
    code = "print('not ready 0'); print('ready (1'); print('ready (2'); "

    async with (
        asyncio.timeout(GIVE_UP_SECONDS),
        running(python(code + WAITS), ready="ready (") as program,
    ):
        assert program.ready_line == "ready (1"


async def test_a_pattern_finds_what_the_line_says() -> None:
    code = "print('12:00 ready at http://h:1 kv=k'); " + WAITS
    ready = re.compile(r".*ready at (\S+)(?: kv=(\S+))?")

    async with asyncio.timeout(GIVE_UP_SECONDS), running(python(code), ready=ready) as program:
        assert program.announced.groups() == ("http://h:1", "k")


async def test_a_program_that_dies_is_reported_with_the_end_of_its_output() -> None:
    async with asyncio.timeout(GIVE_UP_SECONDS), stopped_together() as programs:
        code = "print('no memory'); raise SystemExit(3)"
        programs.append(Program(python(code), name="prefill-0"))
        await programs[0].launch()

        with pytest.raises(ProcessFailed, match=r"prefill-0 ended with exit code 3[^$]*no memory"):
            await programs[0].ended()


async def test_only_the_end_of_a_long_output_is_shown() -> None:
    async with asyncio.timeout(GIVE_UP_SECONDS), stopped_together() as programs:
        programs.append(Program(python("print(*range(1000), sep='\\n')")))
        await programs[0].launch()

        with pytest.raises(ProcessFailed) as failed:
            await programs[0].ended()

    assert len(str(failed.value).splitlines()) == 1 + processes.TAIL_LINES
    assert str(failed.value).endswith("999")


async def test_a_line_without_end_stops_no_program() -> None:
    code = "print('x' * (5 << 20)); " + WAITS

    async with asyncio.timeout(GIVE_UP_SECONDS), running(python(code), ready="ready") as program:
        assert program.runs


async def test_stubborn_programs_and_their_children_are_ended_together() -> None:
    async with asyncio.timeout(GIVE_UP_SECONDS):
        async with stopped_together() as programs:
            for _ in range(2):
                programs.append(Program(python(STUBBORN_FAMILY), "ready", grace_seconds=0.05))
                await programs[-1].start()
            children = [int(program.ready_line.split()[1]) for program in programs]
            assert not any(map(is_gone, children))

        assert not any(program.runs for program in programs)
        # Killed at the same moment, but its new parent is not ours to wait for.
        for child in children:
            await until(partial(gone, child), "the end of a child")


async def test_a_program_that_obeys_is_not_killed() -> None:
    code = "import signal; signal.signal(15, lambda *_: exit(0)); " + WAITS
    async with asyncio.timeout(GIVE_UP_SECONDS):
        async with running(python(code), ready="ready") as program:
            pass

        with pytest.raises(ProcessFailed, match="exit code 0"):
            await program.ended()


async def test_an_output_held_open_does_not_hide_a_death() -> None:
    """A worker that outlives its parent keeps the parent's output open."""
    code = "import os, time\nif os.fork() == 0: time.sleep(600)\nos._exit(4)"
    async with asyncio.timeout(GIVE_UP_SECONDS), stopped_together() as programs:
        programs.append(Program(python(code)))
        await programs[0].launch()

        with pytest.raises(ProcessFailed, match="exit code 4"):
            await programs[0].ended()


async def test_a_program_has_a_process_group_of_its_own() -> None:
    """So Ctrl-C in the terminal reaches only us, and we end the others in order."""
    async with asyncio.timeout(GIVE_UP_SECONDS), running(python(WAITS), ready="ready") as program:
        assert os.getpgid(program.pid) == program.pid != os.getpgid(0)


async def test_waiting_returns_the_first_answer_that_is_true() -> None:
    answers = iter([0, 0, 3])

    async def question() -> int:
        return next(answers)

    assert await until(question, "three") == 3


async def test_what_never_comes_is_named() -> None:
    async def never() -> bool:
        return False

    with pytest.raises(NeverHappened, match="the moon"):
        await until(never, "the moon", within_seconds=0.05)
