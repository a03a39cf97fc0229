"""Looks at the engines twice a second, and decides every few seconds which engine is to serve what.

Without a store a process decides for itself. With one, one process decides (leader.py), and the
others do as it says. While the store cannot be reached no process changes anything.
"""

import asyncio
import logging
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from pdgate.cluster.complaint import Complaint
from pdgate.cluster.directory import StoreAway
from pdgate.cluster.jobs import is_cancelled
from pdgate.gateway.adaptive.leader import Leader
from pdgate.gateway.adaptive.record import (
    REMEMBERED,
    BadRecord,
    RoleChange,
    RoleRecord,
    Side,
    from_bytes,
    to_bytes,
)
from pdgate.gateway.adaptive.sides import Sides
from pdgate.gateway.sync.shared_store import SharedStore
from pdgate.protocols.instance import Role
from pdgate.scheduling.roles import Roles, Turn

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.5

_SIDES: Final[dict[Role, Side]] = {Role.PREFILL: "prefill", Role.DECODE: "decode"}


class Adapting:
    """
    Attributes:
        changes: The latest decisions of all processes, oldest first.
        counted: (instance id, side) -> how often it was turned to it by this process.
    """

    def __init__(
        self,
        sides: Sides,
        roles: Roles,
        period_seconds: float,
        store: SharedStore | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.sides = sides
        self.roles = roles
        self.leader = Leader(secrets.token_hex(6), period_seconds)
        self.changes: deque[RoleChange] = deque(maxlen=REMEMBERED)
        self.counted: Counter[tuple[str, Side]] = Counter()
        self._period_seconds = period_seconds
        self._store = store
        self._clock = clock
        self._wall = wall
        self._beat = 0
        self._complaint = Complaint(
            log, "sides stay as they are, as they cannot be shared", "sides are shared again"
        )

    async def run(self) -> None:
        """Run until cancelled."""
        next_round = self._clock()
        try:
            while not is_cancelled():
                self.look()
                if self._clock() >= next_round:
                    next_round = self._clock() + self._period_seconds
                    await self.round()
                await asyncio.sleep(min(LOOK_SECONDS, self._period_seconds))
        finally:
            if self._store is not None:
                await self._store.close()

    def look(self) -> None:
        self.sides.settle()
        self.roles.see(self.sides.engines(), self._clock())

    async def round(self) -> None:
        store = self._store
        if store is None:
            self._decide()
            return
        with self._complaint.catching(StoreAway):
            self._hear(await store.read())
            if self.leader.leads(self._clock()):
                self._decide()
                await store.pin(to_bytes(self._record()))

    def _hear(self, found: bytes | None) -> None:
        """What another process has decided is done here too."""
        record = None
        if found is not None:
            try:
                record = from_bytes(found)
            except BadRecord as error:
                # The leader will write over it.
                log.warning("what is shared of sides cannot be read: %s", error)
        if self.leader.hears(record, self._clock()) and record is not None:
            self.changes = deque(record.changes, maxlen=REMEMBERED)
            for instance_id, side in record.sides.items():
                self.sides.put(instance_id, Role(side))

    def _decide(self) -> None:
        for turn in self.roles.decide(self.sides.engines(), self._clock()):
            self._take(turn)

    def _take(self, turn: Turn) -> None:
        side = _SIDES[turn.to]
        log.info("%s serves %s from now on: %s", turn.id, side, turn.reason)
        self.sides.put(turn.id, turn.to)
        self.changes.append(RoleChange(self._wall(), turn.id, side, turn.reason, turn.first))
        if not turn.first:
            self.counted[turn.id, side] += 1

    def _record(self) -> RoleRecord:
        self._beat += 1
        sides = {name: _SIDES[side] for name, side in self.sides.decided().items()}
        return RoleRecord(self.leader.own, self._beat, sides, tuple(self.changes))
