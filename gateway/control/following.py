"""Following of what is held: what other processes have said, in force here, and our word that it is.

    look --> state --> engines that are left out get no calls
                   --> prefix index: what is void is forgotten
                   --> holds: calls wait, go on, are ended
                   --> tell: version, and how many calls of held models run here

Engines that were paused or asleep are looked at before calls go on: until then they are taken to sleep.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

import msgspec
from pydantic import ValidationError

from pdgate.cluster.complaint import Complaint
from pdgate.cluster.directory import StoreAway
from pdgate.cluster.jobs import is_cancelled
from pdgate.gateway.control.board import ControlBoard
from pdgate.gateway.control.holds import Holds
from pdgate.gateway.control.state import HeldState
from pdgate.gateway.probe import Prober
from pdgate.protocols.fields import UNREADABLE
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.prefix import PrefixIndex

log = logging.getLogger(__name__)

IDLE_SECONDS: Final = 0.5
HELD_SECONDS: Final = 0.05
"""Between two looks: while nothing is held, and while something is."""
FRESH_SECONDS: Final = 10.0
"""For which what was read is good where others wait for a process no longer than its lease."""
AWAKE_SECONDS: Final = 10.0
"""For engines to be seen awake, before calls go on all the same."""


class ControlWord(msgspec.Struct):
    """What a process says of itself."""

    version: int = -1
    running: dict[str, int] = {}

    def has(self, version: int, models: Collection[str]) -> bool:
        """Whether it has taken the version, and runs no call of these."""
        return self.version >= version and not any(self.running.get(model) for model in models)


def read_word(word: bytes) -> ControlWord:
    """One that has taken nothing, for what cannot be read."""
    try:
        return msgspec.json.decode(word, type=ControlWord) if word else ControlWord()
    except UNREADABLE:
        return ControlWord()


@dataclass(slots=True, eq=False)
class Following:
    """
    Attributes:
        leave_out: Takes the ids of engines that get no calls.
        lease: Whether others wait for this process no longer than a lease.
    """

    board: ControlBoard
    holds: Holds
    endpoints: Endpoints
    index: PrefixIndex
    prober: Prober
    leave_out: Callable[[Collection[str]], None]
    lease: bool = False
    _complaint: Complaint = field(
        default_factory=lambda: Complaint(log, "what is held cannot be read")
    )
    _taking: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def state(self) -> HeldState:
        return self.holds.state

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            while not is_cancelled():
                with self._complaint.catching(StoreAway):
                    await self.look()
                # What was known last is in force while the store is away.
                self.holds.fresh(FRESH_SECONDS if self.lease else float("inf"))
                await asyncio.sleep(HELD_SECONDS if self.state.held else IDLE_SECONDS)
        finally:
            await self.board.leave()

    async def look(self) -> HeldState:
        """Take what others have said since, tell, and return what is in force. Raises StoreAway."""
        found = await self.board.read()
        state = self.state if found is None else _state(found, self.state)
        if state.version > self.state.version:
            await self.take(state)
        else:
            await self._tell()
        return self.state

    async def take(self, state: HeldState) -> None:
        """Put a state in force here. Raise StoreAway where that cannot be announced."""
        # One after the other, as engines may have to be waited for; what is older comes too late.
        async with self._taking:
            if state.version > self.state.version:
                await self._take(state)
        await self._tell()

    async def _take(self, state: HeldState) -> None:
        before = self.state
        self.leave_out(state.left_out)
        for model, version in state.void.items():
            if version > before.void.get(model, 0):
                for endpoint in self.endpoints:
                    if model in endpoint.models:
                        self.index.cleared(endpoint.instance.id)
        if released := before.held.keys() - state.held.keys():
            await self._awake(released)
        self.holds.take(state)

    async def _tell(self) -> None:
        state = self.state
        running = {model: self.holds.running((model,)) for model in state.held}
        word = {"version": state.version, "running": running}
        await self.board.tell(json.dumps(word).encode())

    async def _awake(self, models: Collection[str]) -> None:
        """Looks at those that were found asleep, and waits for it."""
        asleep = [one for one in self.endpoints if one.asleep and not one.models.isdisjoint(models)]
        for endpoint in asleep:
            self.prober.look_again(endpoint.instance.id)
        until = monotonic() + AWAKE_SECONDS
        # The prober has no event for a single look.
        while any(one.asleep for one in asleep) and monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(HELD_SECONDS)


def _state(found: bytes, before: HeldState) -> HeldState:
    try:
        return HeldState.model_validate_json(found, strict=True)
    except ValidationError:
        log.warning("what is said to be held cannot be read, and is not taken")
        return before
