"""Pausing of one running call: its legs end for a more urgent call, and it goes on when it is let in again.

    gate        pausing.running()    what it holds of engines; None while it cannot pause
                pausing.pause()      its legs end, which aborts its requests at the engines
    execution   attempt ... ends ->  pausing.wait()   until the gate lets it in
                                     the next attempt, with what has been said (resuming/)

A stream that has begun ends as if its engine had broken off, at an event; what has not begun is cancelled, as if its
client had left. Either way another attempt goes on where the client is, and no failure is counted of any engine.
Only what could be resumed is paused, whether or not the gateway resumes what breaks.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from pdgate.forwarders.base import Reserved
from pdgate.forwarders.record import Record
from pdgate.forwarders.resuming.resume import Resuming
from pdgate.protocols.call import Call
from pdgate.protocols.errors import GaveWay
from pdgate.scheduling.admission.giving_way import RunningCall


class RunningAttempt(Protocol):
    """What holds engines now; `reading` and `answering` as in `Attempt`."""

    call: Call
    reading: Reserved | None
    answering: Reserved | None


class Pausing:
    """
    Attributes:
        count: How often it has been paused.
    """

    def __init__(self, wait: Callable[[], Awaitable[None]]) -> None:
        """`wait`: ends its turn, and returns when it has one again."""
        self.count = 0
        self._wait = wait
        self._record: Record | None = None
        self._resuming: Resuming | None = None
        self._attempt: RunningAttempt | None = None
        self._task: asyncio.Task[object] | None = None
        self._cancelled_before = 0
        self._pausing = self._cancelled = False

    # Execution's.

    def begins(self, attempt: RunningAttempt, record: Record, resuming: Resuming) -> None:
        """An attempt of the current task."""
        self._attempt, self._record, self._resuming = attempt, record, resuming
        self._task = asyncio.current_task()
        if self._task is not None:
            self._cancelled_before = self._task.cancelling()

    def ended(self, error: BaseException | None) -> bool:
        """The attempt has; whether it did so to be paused. If so, `wait` is next."""
        asked, self._pausing, self._attempt = self._pausing, False, None
        cancelled, self._cancelled = self._cancelled, False
        if cancelled:
            assert self._task is not None
            # Where the client left as well, the task is cancelled for that, too, and stays so.
            left = self._task.uncancel() > self._cancelled_before
            return isinstance(error, asyncio.CancelledError) and not left
        # Else it ended of itself in the same moment.
        return asked and isinstance(error, GaveWay)

    async def wait(self) -> None:
        """Raises GatewayError, CancelledError."""
        record = self._record
        assert record is not None
        clock = record.clock
        since = clock()
        self.count += 1
        try:
            await self._wait()
        finally:
            record.pauses = (*record.pauses, (since, clock()))

    def close(self) -> None:
        """The call is over."""
        if self._resuming is not None:
            self._resuming.close()

    # The gate's.

    def running(self, urgency: int, counts: bool) -> RunningCall | None:
        """`urgency`: as it is now; `counts`: as in RunningCall."""
        attempt, record, resuming = self._attempt, self._record, self._resuming
        if attempt is None or record is None or resuming is None or self._pausing:
            return None
        if not resuming.may_pause(record):
            return None
        clock, reading, answering = record.clock, attempt.reading, attempt.answering
        if reading is None and answering is not None and answering.unread_tokens:
            reading = answering
        if record.is_answering:
            reading = None
        return RunningCall(
            urgency,
            self.count,
            "" if reading is None else reading.instance.id,
            0 if reading is None else reading.unread_tokens,
            0.0 if reading is None or not record.legs else clock() - record.legs[-1].started,
            "" if answering is None else answering.instance.id,
            attempt.call.prompt_tokens + resuming.said_tokens,
            counts,
        )

    def pause(self) -> None:
        """Pause a call that `running` said something of, without a wait in between."""
        assert self._resuming is not None
        assert self._task is not None
        self._pausing = True
        attempt = self._attempt
        if attempt is not None:
            for reserved in (attempt.reading, attempt.answering):
                if reserved is not None:
                    reserved.drop_unread()
        if not self._resuming.break_off(GaveWay("a more urgent call has its place")):
            self._cancelled = True
            self._task.cancel()
