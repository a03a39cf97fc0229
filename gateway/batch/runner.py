"""Runner: the job of the one process that serves batches.

    asks for the lead (sharing.py) until it has it; where it is lost, all that runs ends, and it asks again

    every LOOK_SECONDS, or when a route has news
        state --unfinished batches--> a task for each, MOST_RUNNING at most, owners in turn
              --files whose time is over--> removed

    a task      begin: count the lines              --> in_progress, or failed
                lines: those without a result, `concurrency` at once over all batches, in turn
                end: results --> files of answers and of errors, then the state, in one step

An answer that the state does not take (a full disk) is kept until it does, with its place: no call is made twice.
A look that fails is done again at the next.

What dies with the process is under way again when another leads: results are in the state, and lines that
have none are served. A batch that trips the runner waits PAUSE_SECONDS, and costs no other one anything.

A storage cannot refuse a process that has lost the lead and does not know it yet, so no two ever write a content of
the same name: each try to end a batch has names of its own, and what no batch has taken in the end is removed.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, BinaryIO, Final

from pdgate.gateway.batch.answering import Caller
from pdgate.gateway.batch.archive import Archive
from pdgate.gateway.batch.lines import BatchLine, BrokenLine, LineResult, errored, expired, numbered
from pdgate.gateway.batch.objects import UNFINISHED, BatchObject, BatchStatus, StoredFile, new_id
from pdgate.gateway.batch.reading import Reading
from pdgate.gateway.batch.sharing import Lead
from pdgate.gateway.batch.state import BatchState, LeadLost, StateAway, StoredBatch
from pdgate.gateway.front.crowd import Crowd
from pdgate.gateway.security.authenticator import KeyState
from pdgate.gateway.service import Service

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
PAUSE_SECONDS: Final = 10.0
MOST_RUNNING: Final = 32
"""Batches at once; each has one line in memory at least."""
PIECE_BYTES: Final = 1 << 20
"""Of results that are written at once."""
KEEP_SECONDS: Final = 1.0
"""Between two tries to keep a result."""
SWEEP_SECONDS: Final = 60.0
SWEPT_FILES: Final = 100
"""In one look."""
WRITTEN_SECONDS: Final = 3600
"""For a piece of results, and for all of them to be put where they belong; what is there of them then is removed."""
BATCH_OUTPUT: Final = "batch_output"


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """
    Attributes:
        concurrency: Lines under way, of all batches.
        most_file_bytes: Of an input.
        most_lines: Of a batch.
        most_unfinished: Batches of one owner.
        most_stored: Files of one owner.
        keep_seconds: Until a file is deleted, unless its owner says less; batches are forgotten then, too.
    """

    concurrency: int
    most_file_bytes: int
    most_lines: int
    most_unfinished: int
    most_stored: StoredBatch
    keep_seconds: int


@dataclass(slots=True)
class ServedBatches:
    """
    Attributes:
        lines: What serves its lines; None before and behind that.
        not_before: Monotonic seconds of its next try, after a failure.
    """

    task: "asyncio.Task[None] | None" = None
    lines: "asyncio.Task[None] | None" = None
    not_before: float = 0.0


class Runner:
    """
    Attributes:
        leads: This process serves the batches.
        lines: Outcome -> lines that have come to it here: ok, error.
        statuses: Status -> batches that are not finished, at the last look.
    """

    def __init__(
        self,
        service: Service,
        state: BatchState,
        lead: Lead,
        archive: Archive,
        limits: BatchLimits,
        crowd: Crowd,
        ready: asyncio.Event,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`state`: which refuses writes without the lead. `ready`: engines have been looked at; before, none of
        them is known to be up."""
        self.leads = False
        self.lines: Counter[str] = Counter(ok=0, error=0)
        self.statuses: Counter[BatchStatus] = Counter()
        self._service = service
        self._state = state
        self._lead = lead
        self._archive = archive
        self._reading = Reading(archive, crowd, lambda: service.intake.max_body_bytes)
        self._memory = crowd
        self._limits = limits
        self._ready = ready
        self._clock = clock
        self._places = asyncio.Semaphore(limits.concurrency)
        self._served: dict[str, ServedBatches] = {}
        self._news = asyncio.Event()
        self._next_sweep = 0.0
        self._complaint = ""

    def look(self) -> None:
        """Wake the runner: there may be something to do."""
        self._news.set()

    async def run(self) -> None:
        """Serve batches whenever it is for this process to do so, until cancelled."""
        try:
            await self._ready.wait()
            while True:
                await self._take_lead()
                await self._serve_while_leading()
                log.warning("this process serves batches no more: another one may")
        finally:
            await self._state.close()

    async def _take_lead(self) -> None:
        """Where another process leads, its end is known by asking again."""
        while True:
            with self._complains("who serves batches is asked again"):
                if await self._lead.take():
                    return
                await self._sweep_parts()
            await asyncio.sleep(LOOK_SECONDS)

    async def _serve_while_leading(self) -> None:
        self.leads = True
        serving = asyncio.create_task(self._serve_all(), name="batches")
        holding = asyncio.create_task(self._lead.hold(), name="batches-lead")
        try:
            await asyncio.wait([serving, holding], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.leads = False
            for task in (serving, holding):
                task.cancel()
            await asyncio.wait([serving, holding])
            self._served.clear()
            await self._lead.resign()
        for task in (serving, holding):
            if not task.cancelled():
                task.result()

    async def _serve_all(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                self._news.clear()
                with self._complains("batches are looked at again"):
                    await self._look(group)
                try:
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._news.wait()
                except TimeoutError:
                    pass

    @contextmanager
    def _complains(self, what: str) -> Iterator[None]:
        """Once per reason: a state that is away is many looks."""
        try:
            yield
        except StateAway as error:
            if str(error) != self._complaint:
                log.warning("%s: %s", what, error)
            self._complaint = str(error)
        else:
            self._complaint = ""

    async def _look(self, group: asyncio.TaskGroup) -> None:
        now = time.monotonic()
        if await self._sweep_parts():
            await self._sweep()
        unfinished = await self._state.unfinished()
        self.statuses = Counter(dict.fromkeys(UNFINISHED, 0))
        self.statuses.update(batch.status for batch in unfinished)
        for batch_id in self._served.keys() - {batch.id for batch in unfinished}:
            if self._served[batch_id].task is None:
                del self._served[batch_id]
        for batch in unfinished:
            served = self._served.get(batch.id)
            if batch.status is BatchStatus.CANCELLING and served is not None and served.lines:
                served.lines.cancel()
        if self._service.drain.began is not None:
            return
        while (found := self._next(unfinished, now)) is not None:
            served = self._served.setdefault(found.id, ServedBatches())
            served.task = group.create_task(self._guarded(found, served), name=f"batch {found.id}")

    def _next(self, unfinished: Sequence[BatchObject], now: float) -> BatchObject | None:
        """The oldest batch of the owner with the fewest that are served; None for none."""
        running = {batch_id for batch_id, served in self._served.items() if served.task}
        if len(running) >= MOST_RUNNING:
            return None
        of_owner = Counter(batch.owner for batch in unfinished if batch.id in running)
        waiting = [
            batch
            for batch in unfinished
            if batch.id not in running
            and self._served.get(batch.id, _NEVER_SERVED).not_before <= now
        ]
        return min(waiting, key=lambda batch: of_owner[batch.owner], default=None)

    async def _guarded(self, batch: BatchObject, served: ServedBatches) -> None:
        try:
            await self._serve(batch, served)
        except LeadLost:
            # As all of them do, in a moment.
            log.info("batch %s stops here", batch.id)
        # Whatever it is, it is this batch's alone, and may be over when it is tried again.
        except Exception:
            log.exception("batch %s stops, and goes on in %g s", batch.id, PAUSE_SECONDS)
            served.not_before = time.monotonic() + PAUSE_SECONDS
        finally:
            served.task = served.lines = None
        self.look()

    async def _serve(self, batch: BatchObject, served: ServedBatches) -> None:
        found = await self._state.batch(batch.id)
        if found is not None and found.status is BatchStatus.VALIDATING:
            found = await self._begin(found)
        if found is not None and found.status is BatchStatus.IN_PROGRESS:
            ends_as, errors = BatchStatus.FAILED, [_error("file_not_found", GONE)]
            try:
                ends_as, errors = await self._all_lines(found, served), []
            except* FileNotFoundError:
                # What has an answer keeps it.
                log.warning("the input of %s is no more", found.id)
            found = await self._state.change(
                found.id, lambda now: self._finalizing(now, ends_as, errors)
            )
        if found is not None and found.status in (BatchStatus.FINALIZING, BatchStatus.CANCELLING):
            await self._end(found)

    # The beginning.

    async def _begin(self, batch: BatchObject) -> BatchObject | None:
        """Count its lines."""
        limits = self._limits
        intake = self._service.intake

        def count(file: BinaryIO) -> int:
            lines = numbered(file, intake.max_body_bytes)
            return sum(1 for _ in islice(lines, limits.most_lines + 1))

        try:
            async with self._archive.opened(batch.input_file_id) as file:
                total = await self._archive.run(count, file)
        except FileNotFoundError:
            return await self._fails(batch, "file_not_found", GONE)
        if total == 0:
            return await self._fails(batch, "empty_file", "the input file has no lines")
        if total > limits.most_lines:
            said = f"the input file has more than {limits.most_lines} lines"
            return await self._fails(batch, "too_many_lines", said)

        def begun(now: BatchObject) -> BatchObject:
            if now.status is not BatchStatus.VALIDATING:
                return now
            return now.becomes(BatchStatus.IN_PROGRESS, self._clock(), total=total)

        return await self._state.change(batch.id, begun)

    async def _fails(self, batch: BatchObject, code: str, message: str) -> BatchObject | None:
        return await self._state.change(
            batch.id,
            lambda now: (
                now
                if now.status is not BatchStatus.VALIDATING
                else now.becomes(BatchStatus.FAILED, self._clock(), errors=[_error(code, message)])
            ),
        )

    # Its lines.

    async def _all_lines(self, batch: BatchObject, served: ServedBatches) -> BatchStatus:
        """Return how it ends: all have a result, or its time is over, or its owner has cancelled it."""
        served.lines = lines = asyncio.create_task(self._lines(batch))
        left = batch.expires_at - self._clock()
        try:
            await asyncio.wait([lines], timeout=max(0.0, left))
        except asyncio.CancelledError:
            # The process ends.
            lines.cancel()
            await asyncio.wait([lines])
            raise
        served.lines = None
        if not lines.done():
            lines.cancel()
            await asyncio.wait([lines])
        if lines.cancelled():
            now = await self._state.batch(batch.id)
            if now is not None and now.status is BatchStatus.CANCELLING:
                return BatchStatus.CANCELLED
            await self._expire(batch)
            return BatchStatus.EXPIRED
        lines.result()
        return BatchStatus.COMPLETED

    async def _lines(self, batch: BatchObject) -> None:
        done = await self._state.done(batch.id)
        caller = Caller(
            self._service, self._memory, batch.endpoint, lambda: self._key_of(batch.owner)
        )
        reading = self._reading
        async with asyncio.TaskGroup() as group, aclosing(reading.lines(batch)) as lines:
            async for line in lines:
                if line.number in done:
                    reading.done(line)
                    continue
                if isinstance(line, BrokenLine):
                    await self._keep(batch, errored(line))
                    continue
                task = None
                try:
                    # Batches wait here in turn.
                    await self._places.acquire()
                    if self._service.drain.began is not None:
                        self._places.release()
                        # Another process goes on with it, or this one after its next start.
                        await asyncio.Event().wait()
                    task = group.create_task(self._line(batch, caller, line))
                    task.add_done_callback(partial(self._line_over, line))
                finally:
                    if task is None:
                        reading.done(line)

    async def _line(self, batch: BatchObject, caller: Caller, line: BatchLine) -> None:
        await self._keep(batch, await caller.result(line))

    def _line_over(self, line: BatchLine, _: "asyncio.Task[None]") -> None:
        self._places.release()
        self._reading.done(line)

    async def _keep(self, batch: BatchObject, result: LineResult) -> None:
        while True:
            try:
                await self._state.add_result(batch.id, result)
                break
            except StateAway:
                await asyncio.sleep(KEEP_SECONDS)
        self.lines["error" if result.failed else "ok"] += 1

    async def _expire(self, batch: BatchObject) -> None:
        done = await self._state.done(batch.id)
        async with aclosing(self._reading.lines(batch)) as lines:
            async for line in lines:
                self._reading.done(line)
                if line.number not in done:
                    what = errored(line) if isinstance(line, BrokenLine) else expired(line)
                    await self._keep(batch, what)

    def _key_of(self, owner: str) -> KeyState | None:
        """Raise LookupError."""
        authenticator = self._service.authenticator
        if authenticator is None:
            return None
        if (found := authenticator.named(owner)) is None:
            raise LookupError(owner)
        return found

    # The end.

    def _finalizing(
        self, batch: BatchObject, ends_as: BatchStatus, errors: list[dict[str, Any]]
    ) -> BatchObject:
        if batch.status is not BatchStatus.IN_PROGRESS:
            return batch
        return batch.becomes(BatchStatus.FINALIZING, self._clock(), ends_as=ends_as, errors=errors)

    async def _end(self, batch: BatchObject) -> None:
        """Write its files. Done again after a crash it writes the same, under other names."""
        completed, failed = await self._state.counts(batch.id)
        output = await self._write(batch, failed=False) if completed else None
        errors = await self._write(batch, failed=True) if failed else None
        cancelled = batch.status is BatchStatus.CANCELLING
        over = batch.becomes(
            BatchStatus.CANCELLED if cancelled else batch.ends_as,
            self._clock(),
            completed=completed,
            failed=failed,
            output_file_id=output and output.id,
            error_file_id=errors and errors.id,
        )
        files = [one for one in (output, errors) if one is not None]
        if not await self._state.finish(over, files):
            raise StateAway("its files took too long to be written")

    async def _write(self, batch: BatchObject, *, failed: bool) -> StoredFile:
        file_id = new_id("file-")
        after, size = 0, 0
        await self._expect(file_id)
        async with self._archive.written(file_id) as write:
            while page := await self._state.results(
                batch.id, failed=failed, after=after, most_bytes=PIECE_BYTES
            ):
                after = page[-1].number
                rows = b"".join(result.row for result in page)
                size += len(rows)
                await write(rows)
                await self._expect(file_id)
        now = int(self._clock())
        return StoredFile(
            id=file_id,
            owner=batch.owner,
            filename=f"{batch.id}_{'error' if failed else 'output'}.jsonl",
            purpose=BATCH_OUTPUT,
            bytes=size,
            created_at=now,
            expires_at=now + self._limits.keep_seconds,
        )

    async def _expect(self, file_id: str) -> None:
        await self._state.expect(file_id, self._clock() + WRITTEN_SECONDS)

    async def _sweep_parts(self) -> bool:
        """Remove what was left half written on this host; return whether it is time to do so elsewhere, too."""
        now = time.monotonic()
        if now < self._next_sweep:
            return False
        self._next_sweep = now + SWEEP_SECONDS
        try:
            await self._archive.sweep()
        except OSError as error:
            log.warning("what was left half written is removed later: %s", error)
        return True

    async def _sweep(self) -> None:
        """Raise StateAway."""
        now = self._clock()
        for file in await self._state.outdated(now, SWEPT_FILES):
            await self._state.remove_file(file.id)
        await self._state.forget_batches(now - self._limits.keep_seconds)
        try:
            for name in await self._state.loose(now, SWEPT_FILES):
                await self._archive.remove(name)
                await self._state.removed(name)
        except OSError as error:
            log.warning("contents that are no more wanted are removed later: %s", error)


def _error(code: str, message: str) -> dict[str, Any]:
    """Why a batch failed."""
    return {"code": code, "message": message, "param": "input_file_id", "line": None}


GONE: Final = "the input file is no more"
_NEVER_SERVED: Final = ServedBatches()
