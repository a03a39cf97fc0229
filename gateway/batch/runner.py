"""Runner: the job of the one process that serves batches.

    asks for the lead (sharing.py) until it has it; where it is lost, all that runs ends, and it asks again

    every LOOK_SECONDS, or when a route has news
        state --unfinished batches--> a task for each, MOST_RUNNING at most, owners in turn
              --files whose time is over--> removed

A look that fails is done again at the next. A batch that trips the runner waits PAUSE_SECONDS, and costs no other
one anything.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from pdgate.cluster.complaint import Complaint
from pdgate.gateway.batch.archive import Archive
from pdgate.gateway.batch.objects import UNFINISHED, BatchObject, BatchStatus
from pdgate.gateway.batch.serving import BatchServing, ServedBatch
from pdgate.gateway.batch.sharing import Lead
from pdgate.gateway.batch.state import BatchLimits, BatchState, LeadLost, StateAway
from pdgate.gateway.front.crowd import Crowd
from pdgate.gateway.service import Service

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
PAUSE_SECONDS: Final = 10.0
MOST_RUNNING: Final = 32
"""Batches at once; each has one line in memory at least."""
SWEEP_SECONDS: Final = 60.0
SWEPT_FILES: Final = 100
"""In one look."""
_NEVER_SERVED: Final = ServedBatch()


class Runner:
    """
    Attributes:
        leads: This process serves the batches.
        serving: Serves each batch.
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
        self.serving = BatchServing(service, state, archive, limits, crowd, clock)
        self.statuses: Counter[BatchStatus] = Counter()
        self._service = service
        self._state = state
        self._lead = lead
        self._archive = archive
        self._keep_seconds = limits.keep_seconds
        self._ready = ready
        self._clock = clock
        self._served: dict[str, ServedBatch] = {}
        self._news = asyncio.Event()
        self._next_sweep = 0.0
        self._lead_away = Complaint(log, "who serves batches is asked again")
        self._state_away = Complaint(log, "batches are looked at again")

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
            with self._lead_away.catching(StateAway):
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
                with self._state_away.catching(StateAway):
                    await self._look(group)
                try:
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._news.wait()
                except TimeoutError:
                    pass

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
            served = self._served.setdefault(found.id, ServedBatch())
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

    async def _guarded(self, batch: BatchObject, served: ServedBatch) -> None:
        try:
            await self.serving.serve(batch, served)
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
        await self._state.forget_batches(now - self._keep_seconds)
        try:
            for name in await self._state.loose(now, SWEPT_FILES):
                await self._archive.remove(name)
                await self._state.removed(name)
        except OSError as error:
            log.warning("contents that are no more wanted are removed later: %s", error)
