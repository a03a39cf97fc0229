"""Background jobs, each supervised: whatever one of them meets ends neither the others nor the process.

    start --> runs --raises, returns, cancels itself--> log, count, wait --> start ...
                |  stop()
                '-- is cancelled, has END_SECONDS for its own end, then is left behind

A job has no end of its own: one that returns has failed like one that raises. The pause before the
next start doubles with each failure, from FIRST_SECONDS to MOST_SECONDS, less up to half of it by
chance, so that the processes of a fleet do not all come at once; a job that ran for GOOD_SECONDS
begins anew with the first.
"""

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from random import random
from time import monotonic, time
from typing import Final, Self

log = logging.getLogger(__name__)

FIRST_SECONDS: Final = 0.5
MOST_SECONDS: Final = 30.0
GOOD_SECONDS: Final = 60.0

END_SECONDS: Final = 5.0
"""For all jobs together to end; the longest of ours takes 3 s, for the last traces."""
AGAIN_SECONDS: Final = 1.0
"""After which a job that has lost its cancellation (redis_client.py) is cancelled again."""

LONGEST_REASON: Final = 300
"""Characters of the last failure that are kept; the log has all of it."""

Run = Callable[[], Awaitable[None]]


def is_cancelled() -> bool:
    """Whether this task was cancelled. A job asks, as redis-py can swallow what hits it while it connects."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def pause_seconds(failures: int, chance: float) -> float:
    """Pause before the start after so many failures in a row, 1 and more; `chance`: 0..1."""
    whole: float = min(MOST_SECONDS, FIRST_SECONDS * 2.0 ** min(failures - 1, 16))
    return whole * (1 - chance / 2)


@dataclass(slots=True, eq=False)
class SupervisedJob:
    """
    Attributes:
        run: Goes on until it is cancelled; it can be called again after it has failed.
        running: False while it waits for its next start.
        restarts: How often it has failed and was, or will be, started anew.
        why: Its last failure, in a line; empty if there was none.
        failed_at: Unix seconds of that.
    """

    name: str
    run: Run
    running: bool = False
    restarts: int = 0
    why: str = ""
    failed_at: float | None = None


class Jobs:
    """A block in which jobs run, from the moment at which they are started."""

    def __init__(
        self,
        pause: Callable[[int], float] = lambda failures: pause_seconds(failures, random()),
        clock: Callable[[], float] = monotonic,
        end_seconds: float = END_SECONDS,
    ) -> None:
        """`pause`: failures in a row -> seconds until the next start."""
        self._pause = pause
        self._clock = clock
        self._end_seconds = end_seconds
        self._jobs: dict[str, SupervisedJob] = {}
        self._ends: list[Callable[[], None]] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def __iter__(self) -> Iterator[SupervisedJob]:
        return iter(self._jobs.values())

    def add(self, name: str, run: Run) -> None:
        assert name not in self._jobs, name
        self._jobs[name] = SupervisedJob(name, run)

    def add_all(self, jobs: Mapping[str, Run]) -> None:
        for name, run in jobs.items():
            self.add(name, run)

    def at_end(self, end: Callable[[], None]) -> None:
        """What is done once, after all jobs have ended; not each time that one fails."""
        self._ends.append(end)

    def start(self, *names: str) -> None:
        """These; without names, all that have not been started."""
        for name in names or self._jobs:
            if name not in self._tasks:
                keeping = self._keep(self._jobs[name])
                self._tasks[name] = asyncio.create_task(keeping, name=f"keeps {name}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Returns after END_SECONDS at the latest, whatever jobs do."""
        until = self._clock() + self._end_seconds
        left = set(self._tasks.values())
        while left and (seconds := until - self._clock()) > 0:
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=min(AGAIN_SECONDS, seconds))
        if left:
            names = [name for name, task in self._tasks.items() if task in left]
            log.error("left behind, as they do not end: %s", ", ".join(sorted(names)))
        self._tasks.clear()
        for end in self._ends:
            try:
                end()
            # The others have an end as well, and the process is to have one.
            except Exception:
                log.exception("the end of a background job failed")

    async def _keep(self, job: SupervisedJob) -> None:
        failures = 0
        while True:
            began = self._clock()
            task = asyncio.create_task(_guarded(job.run), name=job.name)
            job.running = True
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                await self._end(job, task)
                raise
            finally:
                job.running = False
            failures = 1 if self._clock() - began >= GOOD_SECONDS else failures + 1
            seconds = self._pause(failures)
            self._failed(job, _failure(task), seconds)
            await asyncio.sleep(seconds)

    async def _end(self, job: SupervisedJob, task: "asyncio.Task[BaseException | None]") -> None:
        """The same cancellations reach the job; what it fails with is in the log."""
        while not task.done():
            task.cancel()
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                continue
        if task.cancelled():
            return
        error = task.result()
        if error is not None and not isinstance(error, asyncio.CancelledError):
            log.error("the job %s failed at its end", job.name, exc_info=error)

    def _failed(self, job: SupervisedJob, error: BaseException, seconds: float) -> None:
        job.restarts += 1
        job.failed_at = time()
        job.why = "".join(traceback.format_exception_only(error)).strip()[:LONGEST_REASON]
        log.error("the job %s failed and starts anew in %.1f s", job.name, seconds, exc_info=error)


class JobEnded(Exception):
    """A job was over by itself."""


async def _guarded(run: Run) -> BaseException | None:
    """What ended it, a cancellation too; None if it returned."""
    try:
        await run()
    # Also SystemExit and KeyboardInterrupt: raised in a task they would end the event loop.
    except BaseException as error:  # noqa: BLE001
        return error
    return None


def _failure(task: "asyncio.Task[BaseException | None]") -> BaseException:
    if task.cancelled():
        return JobEnded("it was cancelled before it began")
    return task.result() or JobEnded("it returned")
