"""Holds of one process: calls of a model wait while its engines get other weights, are paused, or sleep.

    with every call                  await holds.come(record) ... holds.over(record)
    what all processes know          take(state): who waits, who goes on, who is ended
    a change of engines waits for    running(models)

A call that runs has what it began with, retries too; it counts until it is over. One that waits does so
for `wait_seconds` at most, and no more than `most_waiting` do; others get 503 with Retry-After.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Final

from pdgate.forwarders.record import Record
from pdgate.gateway.control.state import FROZEN, HeldState
from pdgate.protocols.errors import CallAborted, CallsHeld, GatewayError

LONGEST_ADVICE_SECONDS: Final = 60


@dataclass(slots=True, eq=False)
class TrackedCall:
    """
    Attributes:
        cancelled_before: How often its task was cancelled when it came here.
        aborted: An operator has ended it.
    """

    model: str
    call_id: str
    task: "asyncio.Task[object]"
    cancelled_before: int
    aborted: bool = False


class Holds:
    """
    Attributes:
        state: The latest that was taken.
        refused: Calls that waited in vain, or found too many waiting.
        fresh_until: Monotonic seconds until when what was read last is good: a process that stood still for
            longer may have missed what others did not wait for. At first nothing is known.
    """

    def __init__(
        self, meant: Callable[[str | None], str], wait_seconds: float, most_waiting: int
    ) -> None:
        """`meant`: the model of a call that names none, or one. Raises GatewayError."""
        self.state = HeldState()
        self.refused = 0
        self.fresh_until = 0.0
        self._meant = meant
        self._wait_seconds = wait_seconds
        self._most_waiting = most_waiting
        self._waiting: Counter[str] = Counter()
        self._running: dict[int, TrackedCall] = {}
        self._changed = asyncio.Event()

    # Of calls.

    async def come(self, record: Record) -> None:
        """Return when the call may begin. Raise CallsHeld."""
        model = await self.admitted(record.call.model)
        task = asyncio.current_task()
        assert task is not None
        self._running[id(record)] = TrackedCall(model, record.call.id, task, task.cancelling())

    async def admitted(self, name: str | None) -> str:
        """The model, once its calls may begin; for what is not tracked from then on. Raise CallsHeld."""
        model = self._model(name)
        if model in self.state.held or monotonic() > self.fresh_until:
            await self._wait(model)
        return model

    def over(self, record: Record) -> None:
        """Forget a call, however it ended."""
        self._running.pop(id(record), None)

    def ended(self, record: Record) -> GatewayError | None:
        """What a call whose task was cancelled is to hear; None where its client has left."""
        call = self._running.get(id(record))
        if call is None or not call.aborted:
            return None
        call.aborted = False
        if call.task.uncancel() > call.cancelled_before:
            return None
        return CallAborted(
            "an operator ended the calls of this model; ask again", retry_after_seconds=1
        )

    # Of what all processes know.

    def take(self, state: HeldState) -> None:
        before, self.state = self.state, state
        for model, ended in state.aborts.items():
            if ended.version > before.version:
                self._abort(model, ended.ids)
        self._wake()

    def fresh(self, seconds: float) -> None:
        """What is known is good for so long."""
        if monotonic() > self.fresh_until:
            self._wake()
        self.fresh_until = monotonic() + seconds

    def stopped(self, models: Collection[str]) -> bool:
        """Whether engines of one of these were told to keep the calls that run, and to do nothing."""
        return bool(self.state.held) and FROZEN in self.state.reasons(models)

    def running(self, models: Collection[str]) -> int:
        return sum(1 for call in self._running.values() if call.model in models)

    @property
    def waiting(self) -> Mapping[str, int]:
        """Model -> calls that wait."""
        return self._waiting

    def _model(self, name: str | None) -> str:
        try:
            return self._meant(name)
        except GatewayError:
            # No engine serves it, or it is not clear which: others say so.
            return name or ""

    async def _wait(self, model: str) -> None:
        if self._waiting.total() >= self._most_waiting:
            raise self._refusal(model)
        self._waiting[model] += 1
        try:
            async with asyncio.timeout(self._wait_seconds):
                while model in self.state.held or monotonic() > self.fresh_until:
                    await self._changed.wait()
        except TimeoutError:
            raise self._refusal(model) from None
        finally:
            self._waiting[model] -= 1
            if not self._waiting[model]:
                del self._waiting[model]

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _refusal(self, model: str) -> CallsHeld:
        self.refused += 1
        why = self.state.held.get(model, ("not known yet",))
        words = ", ".join(one.partition(":")[0] for one in why)
        return CallsHeld(
            f"the engines of this model take no calls for now ({words})",
            retry_after_seconds=min(math.ceil(self._wait_seconds), LONGEST_ADVICE_SECONDS),
        )

    def _abort(self, model: str, ids: Collection[str]) -> None:
        for call in self._running.values():
            if call.model == model and not call.aborted and (not ids or call.call_id in ids):
                call.aborted = True
                call.task.cancel()
