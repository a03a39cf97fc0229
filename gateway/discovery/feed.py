"""Feed of a directory's events, by which the gateway's instances stay equal to its members.

directory --events--> roster (pure) --in use--> adopt --> Instances: who gets calls
                                                     '--> Prober: which are looked at

Being listed is no proof of health: a newcomer gets calls after its first good probe, and one that
restarted at the same address (another epoch) starts as a newcomer. Calls that are under way with
one that leaves go on. One that changes its role (same epoch) stays in use, with its account; what
it has become counts after another good probe.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from time import thread_time

from pdgate.cluster.directory import Directory, Event, Listed, Lost, Refused, Resumed
from pdgate.cluster.jobs import Run, is_cancelled
from pdgate.cluster.member import Member
from pdgate.cluster.roster import Roster
from pdgate.gateway.discovery.adopt import Adopt, UnusableMember
from pdgate.gateway.discovery.state import DiscoveryState
from pdgate.gateway.probe import Prober
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.endpoints import Endpoints

log = logging.getLogger(__name__)


MOST_LINES = 10
"""In the log, of entries that cannot be used, for each time that the directory tells of any."""
LONGEST_KEY = 200
"""Characters of a key in the log, and of what is wrong with it."""
TURN_SECONDS = 0.005
"""Of CPU time, after which other callbacks have their turn."""


class EntryComplaints:
    """Log of bad entries: the first few in words, the rest by their number."""

    def __init__(self) -> None:
        self._said = 0

    def say(self, text: str, key: str, why: str) -> None:
        self._said += 1
        if self._said <= MOST_LINES:
            log.warning(text, key[:LONGEST_KEY], why[:LONGEST_KEY])

    def end(self) -> None:
        if self._said > MOST_LINES:
            log.warning("and so are %d more of its entries", self._said - MOST_LINES)


class FeedTurns:
    """Lets others have theirs between the steps of a long piece of work."""

    def __init__(self) -> None:
        self._since = thread_time()

    async def take(self) -> None:
        if thread_time() - self._since > TURN_SECONDS:
            await asyncio.sleep(0)
            self._since = thread_time()


@dataclass(frozen=True, slots=True)
class HeldEntry:
    """What we last put into use under an id."""

    instance: Instance
    epoch: str

    def is_now(self, other: "HeldEntry") -> bool:
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
        endpoints: Endpoints,
        prober: Prober,
        adopt: Adopt,
        clock: Callable[[], float],
        state: DiscoveryState | None = None,
    ) -> None:
        self.roster = Roster()
        self.unusable: dict[str, str] = {}
        self.listed = asyncio.Event()
        self._directory = directory
        self._endpoints = endpoints
        self._prober = prober
        self._adopt = adopt
        self._clock = clock
        self._state = state
        self._held: dict[str, HeldEntry] = {}
        self._told = asyncio.Event()
        self._is_known = False

    def adopt_by(self, adopt: Adopt) -> None:
        """The configuration has changed, and with it who can be used."""
        self._adopt = adopt
        self._told.set()

    @property
    def jobs(self) -> dict[str, Run]:
        """Name -> what goes on as long as the gateway does."""
        jobs: dict[str, Run] = {"directory": self.follow, "directory-members": self.keep_equal}
        if self._state is not None:
            jobs["directory-state"] = partial(self._state.keep, self._current)
        return jobs

    async def follow(self) -> None:
        """Follow the directory until cancelled. One that fails, as another package's may, counts as lost."""
        try:
            await self._directory.follow(self.tell)
        finally:
            if not is_cancelled():
                self.tell(Lost("what follows it has failed, and starts anew"))

    def tell(self, event: Event) -> None:
        """Changes that come together are put into use together: it takes a look at all members."""
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

    async def keep_equal(self) -> None:
        """Make the engines those of the directory, after each event and when the doubted are due."""
        # What was found before it failed, if it is started anew, is still to be put into use.
        self._told.set()
        while True:
            until = self.roster.next_change
            wait_seconds = None if until is None else max(0.0, until - self._clock())
            with suppress(TimeoutError):
                await asyncio.wait_for(self._told.wait(), wait_seconds)
            self._told.clear()
            self.roster.expire(self._clock())
            await self._put_into_use()
            if self._is_known:
                self.listed.set()

    async def _put_into_use(self) -> None:
        wanted = await self._wanted()
        turns = FeedTurns()
        self._change_roles(wanted)
        for instance_id in [name for name in self._held if self._held[name] != wanted.get(name)]:
            await turns.take()
            del self._held[instance_id]
            self._endpoints.remove(instance_id)
            self._prober.forget(instance_id)
            if instance_id not in wanted:
                log.info("%s has left", instance_id)
        for instance_id, held in wanted.items():
            if instance_id not in self._held:
                await turns.take()
                self._held[instance_id] = held
                self._endpoints.put(held.instance)
                self._prober.add(held.instance)
                log.info("%s has joined", instance_id)

    def _change_roles(self, wanted: dict[str, HeldEntry]) -> None:
        for instance_id, new in wanted.items():
            held = self._held.get(instance_id)
            if held is None or held == new or not held.is_now(new):
                continue
            self._held[instance_id] = new
            old, role = held.instance.role, new.instance.role
            log.info("%s was %s and is %s", instance_id, old, role)
            # The look may add to a record what its role needs (Mooncake), and puts it into use.
            self._prober.add(new.instance)
            endpoint = self._endpoints.get(instance_id)
            if endpoint is not None and old is Role.BOTH:
                self._endpoints.put(replace(endpoint.instance, role=role))

    async def _wanted(self) -> dict[str, HeldEntry]:
        """Instance id -> what should be in use."""
        wanted: dict[str, HeldEntry] = {}
        unusable = {}
        turns, complaints = FeedTurns(), EntryComplaints()
        for key, member in self.roster.in_use.items():
            await turns.take()
            try:
                instance = self._adopt(member)
            except UnusableMember as why:
                unusable[key] = str(why)
                if self.unusable.get(key) != str(why):
                    complaints.say("the directory's %s is not used: %s", key, str(why))
            else:
                wanted[instance.id] = HeldEntry(instance, member.epoch)
        complaints.end()
        self.unusable = unusable
        return wanted


def _log(event: Event, before: Roster) -> None:
    match event:
        case Lost(why=why) if before.degraded is None:
            log.warning("the directory does not answer; engines last known stay in use: %s", why)
        case Listed() | Resumed() if before.degraded is not None:
            log.info("the directory answers again")
        case Refused(key=key, why=why):
            log.warning(
                "the directory's %s cannot be used: %s", key[:LONGEST_KEY], why[:LONGEST_KEY]
            )
    if isinstance(event, Listed):
        complaints = EntryComplaints()
        for key, why in event.refused.items():
            if before.refused.get(key) != why:
                complaints.say("the directory's %s cannot be used: %s", key, why)
        complaints.end()
