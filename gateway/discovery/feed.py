"""Keeps the gateway's instances equal to what a directory tells.

directory --events--> roster (pure) --in use--> adopt --> Instances: who gets calls
                                                     '--> Prober: who is looked at

Being listed is no proof of health: who joins gets calls after its first good probe, and who
restarted at the same address (another epoch) starts as somebody new. Calls that are under
way with who leaves go on. Who changes its role (same epoch) stays in use, with its account; what it
has become counts after another good probe.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from pdgate.cluster.directory import Directory, Event, Listed, Lost, Refused, Resumed
from pdgate.cluster.member import Member
from pdgate.cluster.roster import Roster
from pdgate.gateway.discovery.adopt import Adopt, Unusable
from pdgate.gateway.discovery.state import State
from pdgate.gateway.probe import Prober
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.instances import Instances

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Held:
    """What we last put into use under an id."""

    instance: Instance
    epoch: str

    def is_now(self, other: "Held") -> bool:
        """Whether the other one is the same process, with another role."""
        return bool(self.epoch) and self == replace(
            other, instance=replace(other.instance, role=self.instance.role)
        )


class Feed:
    """
    Attributes:
        roster: What the directory has told so far.
        unusable: Key -> why a member that is listed gets no calls.
        listed: Set when the directory has told what there is, once; or when it does not answer,
            and our last life has.
    """

    def __init__(
        self,
        directory: Directory,
        instances: Instances,
        prober: Prober,
        adopt: Adopt,
        clock: Callable[[], float],
        state: State | None = None,
    ) -> None:
        self.roster = Roster()
        self.unusable: dict[str, str] = {}
        self.listed = asyncio.Event()
        self._directory = directory
        self._instances = instances
        self._prober = prober
        self._adopt = adopt
        self._clock = clock
        self._state = state
        self._held: dict[str, Held] = {}
        self._told = asyncio.Event()
        self._is_known = False

    def adopt_by(self, adopt: Adopt) -> None:
        """The configuration has changed, and with it who can be used."""
        self._adopt = adopt
        self._put_into_use()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._directory.follow(self.tell))
            group.create_task(self._keep_equal())
            if self._state is not None:
                group.create_task(self._state.keep(self._current))

    def tell(self, event: Event) -> None:
        """What is told together is put into use together: it takes a look at all members."""
        _log(event, self.roster)
        self.roster.apply(event, self._clock())
        if isinstance(event, Lost) and not self.listed.is_set():
            self._recall()
        if isinstance(event, Listed):
            self._is_known = True
        self._told.set()
        if self._state is not None:
            self._state.changed()

    def _recall(self) -> None:
        known = self._state.recall() if self._state is not None else None
        if known is not None:
            log.warning("engines that were known at the last start are in use until it answers")
            self.roster.remember(known.members, known.at)
            self._is_known = True

    def _current(self) -> Mapping[str, Member] | None:
        roster = self.roster
        return roster.in_use if roster.listed and roster.degraded is None else None

    async def _keep_equal(self) -> None:
        """After what was told, and when the time of the doubted has come."""
        while True:
            until = self.roster.next_change
            wait_seconds = None if until is None else max(0.0, until - self._clock())
            with suppress(TimeoutError):
                await asyncio.wait_for(self._told.wait(), wait_seconds)
            self._told.clear()
            self.roster.expire(self._clock())
            self._put_into_use()
            if self._is_known:
                self.listed.set()

    def _put_into_use(self) -> None:
        wanted = self._wanted()
        self._change_roles(wanted)
        for instance_id in [name for name in self._held if self._held[name] != wanted.get(name)]:
            del self._held[instance_id]
            self._instances.remove(instance_id)
            self._prober.forget(instance_id)
            if instance_id not in wanted:
                log.info("%s has left", instance_id)
        for instance_id, held in wanted.items():
            if instance_id not in self._held:
                self._held[instance_id] = held
                self._instances.put(held.instance)
                self._prober.add(held.instance)
                log.info("%s has joined", instance_id)

    def _change_roles(self, wanted: dict[str, Held]) -> None:
        for instance_id, new in wanted.items():
            held = self._held.get(instance_id)
            if held is None or held == new or not held.is_now(new):
                continue
            self._held[instance_id] = new
            old, role = held.instance.role, new.instance.role
            log.info("%s was %s and is %s", instance_id, old, role)
            # The look may add to a record what its role needs (Mooncake), and puts it into use.
            self._prober.add(new.instance)
            candidate = self._instances.get(instance_id)
            if candidate is not None and old is Role.BOTH:
                self._instances.put(replace(candidate.instance, role=role))

    def _wanted(self) -> dict[str, Held]:
        """Instance id -> what should be in use."""
        wanted: dict[str, Held] = {}
        unusable = {}
        for key, member in self.roster.in_use.items():
            try:
                instance = self._adopt(member)
            except Unusable as why:
                unusable[key] = str(why)
                if self.unusable.get(key) != str(why):
                    log.warning("the directory's %s is not used: %s", key, why)
            else:
                wanted[instance.id] = Held(instance, member.epoch)
        self.unusable = unusable
        return wanted


def _log(event: Event, before: Roster) -> None:
    match event:
        case Lost(why=why) if before.degraded is None:
            log.warning("the directory does not answer; engines last known stay in use: %s", why)
        case Listed() | Resumed() if before.degraded is not None:
            log.info("the directory answers again")
        case Refused(key=key, why=why):
            log.warning("the directory's %s cannot be used: %s", key, why)
    if isinstance(event, Listed):
        for key, why in event.refused.items():
            if before.refused.get(key) != why:
                log.warning("the directory's %s cannot be used: %s", key, why)
