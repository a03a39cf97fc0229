"""Python's own start in processes of a gateway under attack: each background job fails again and again.

STRIKES      how often each job fails, before it is left alone; each time by another exception, wherever
             it waits: the first time FIRST_SECONDS after it began, so that calls are served by then
STUBBORN     a job that swallows every cancellation, for a process that does not end by itself

With this folder on PYTHONPATH it reaches workers too, which start as new processes.
"""

import asyncio
import errno
import os
from collections.abc import Callable, Generator
from itertools import count
from typing import Any

from pdgate.cluster import jobs
from pdgate.cluster.jobs import Jobs, Run

STRIKES = int(os.environ.get("STRIKES", "0"))
STUBBORN = "STUBBORN" in os.environ

FIRST_SECONDS = 2.0
AGAIN_SECONDS = 0.05

KINDS: tuple[Callable[[], BaseException | None], ...] = (
    lambda: RuntimeError("a bug"),
    lambda: OSError(errno.EMFILE, "Too many open files"),
    asyncio.CancelledError,
    lambda: SystemExit(0),
    KeyboardInterrupt,
    lambda: BaseException("neither"),
    MemoryError,
    lambda: ExceptionGroup("several", [ValueError("one"), TypeError("other")]),
    lambda: None,
)
"""None: it returns early."""


class Struck:
    """The job's coroutine, into which an exception is thrown where it waits."""

    def __init__(self, run: Run, strike: BaseException | None, after_seconds: float) -> None:
        self._run = run
        self._strike = strike
        self._after_seconds = after_seconds
        self._strikes = self._over = False

    def __await__(self) -> Generator[Any, Any, None]:
        task = asyncio.current_task()
        assert task is not None

        loop = asyncio.get_running_loop()

        def strike() -> None:
            if not self._over:
                self._strikes = True
                task.cancel()
                # Until Python 3.12 asyncio.wait_for swallows some of what is thrown into it.
                loop.call_later(AGAIN_SECONDS, strike)

        loop.call_later(self._after_seconds, strike)
        try:
            yield from self._struck(task)
        finally:
            self._over = True

    def _struck(self, task: "asyncio.Task[Any]") -> Generator[Any, Any, None]:
        job = self._run().__await__()
        assert isinstance(job, Generator)
        waits_for = job.send(None)
        while True:
            try:
                sent = yield waits_for
            except asyncio.CancelledError as error:
                if not self._strikes:
                    waits_for = job.throw(error)
                    continue
                self._strikes = False
                task.uncancel()
                if self._strike is None:
                    job.close()
                    return
                # It may clean up with further pauses before it is over.
                waits_for = job.throw(self._strike)
            else:
                waits_for = job.send(sent)


def striking(run: Run) -> Run:
    times = count()

    async def struck() -> None:
        number = next(times)
        if number < STRIKES:
            seconds = 0.0 if number else FIRST_SECONDS
            await Struck(run, KINDS[number % len(KINDS)](), seconds)
        else:
            await run()

    return struck


async def stubborn() -> None:
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue


if STRIKES:
    added = Jobs.add

    def add(self: Jobs, name: str, run: Run) -> None:
        added(self, name, striking(run))

    Jobs.add = add  # type: ignore[method-assign]
    jobs.pause_seconds = lambda failures, chance: 0.001 + chance / 1000

if STUBBORN:
    begun = Jobs.__aenter__

    async def begin(self: Jobs) -> Jobs:
        self.add("stubborn", stubborn)
        return await begun(self)

    Jobs.__aenter__ = begin  # type: ignore[method-assign,assignment]
