"""Serving of one batch, from its input to its files; runner.py says when.

    begin   count the lines                   --> in_progress, or failed
    lines   those without a result, `concurrency` at once over all batches, in turn
    end     results --> files of answers and of errors, then the state, in one step

An answer that the state does not take (a full disk) is kept until it does, with its place: no call is made twice.

What dies with the process is under way again when another leads: results are in the state, and lines that
have none are served.

A storage cannot refuse a process that has lost the lead and does not know it yet, so no two ever write a content of
the same name: each try to end a batch has names of its own, and what no batch has taken in the end is removed.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, BinaryIO, Final

from pdgate.gateway.batch.answering import Caller
from pdgate.gateway.batch.archive import Archive
from pdgate.gateway.batch.lines import BatchLine, BrokenLine, LineResult, errored, expired, numbered
from pdgate.gateway.batch.objects import BatchObject, BatchStatus, StoredFile, new_id
from pdgate.gateway.batch.reading import Reading
from pdgate.gateway.batch.state import BatchLimits, BatchState, StateAway
from pdgate.gateway.front.crowd import Crowd
from pdgate.gateway.security.authenticator import KeyState
from pdgate.gateway.service import Service

log = logging.getLogger(__name__)

PIECE_BYTES: Final = 1 << 20
"""Of results that are written at once."""
KEEP_SECONDS: Final = 1.0
"""Between two tries to keep a result."""
WRITTEN_SECONDS: Final = 3600
"""For a piece of results, and for all of them to be put where they belong; what is there of them then is removed."""
BATCH_OUTPUT: Final = "batch_output"
GONE: Final = "the input file is no more"


@dataclass(slots=True)
class ServedBatch:
    """
    Attributes:
        lines: What serves its lines; None before and behind that.
        not_before: Monotonic seconds of its next try, after a failure.
    """

    task: "asyncio.Task[None] | None" = None
    lines: "asyncio.Task[None] | None" = None
    not_before: float = 0.0


class BatchServing:
    """
    Attributes:
        lines: Outcome -> lines that have come to it here: ok, error.
    """

    def __init__(
        self,
        service: Service,
        state: BatchState,
        archive: Archive,
        limits: BatchLimits,
        crowd: Crowd,
        clock: Callable[[], float],
    ) -> None:
        self.lines: Counter[str] = Counter(ok=0, error=0)
        self._service = service
        self._state = state
        self._archive = archive
        self._reading = Reading(archive, crowd, lambda: service.intake.max_body_bytes)
        self._memory = crowd
        self._limits = limits
        self._clock = clock
        self._places = asyncio.Semaphore(limits.concurrency)

    async def serve(self, batch: BatchObject, served: ServedBatch) -> None:
        """Do what is left of a batch. Raise StateAway."""
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

    async def _all_lines(self, batch: BatchObject, served: ServedBatch) -> BatchStatus:
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
        caller = Caller(self._service, self._memory, batch.endpoint, lambda: self._key_of(batch))
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

    def _key_of(self, batch: BatchObject) -> KeyState | None:
        """Raise LookupError, RateLimited."""
        authenticator = self._service.authenticator
        if authenticator is None:
            return None
        if (found := authenticator.of_owner(batch.owner, batch.rule)) is None:
            raise LookupError(batch.owner)
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


def _error(code: str, message: str) -> dict[str, Any]:
    """Why a batch failed."""
    return {"code": code, "message": message, "param": "input_file_id", "line": None}
