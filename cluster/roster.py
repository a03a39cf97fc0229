"""The engines in use after each event of a directory. Pure: the time is a parameter.

A store that comes back from an outage may know less than we do: leases ended while no engine
could renew them, or it starts empty. The engines are there all the same and announce
themselves again within seconds. So who disappears in or right after an outage is only
doubted, and stays in use for `grace_seconds`; health checks say meanwhile whether it can be
called. At any other time, and for a member that had said that it drains, gone is gone.

One engine listens at an address. So of two entries with the same address, as there are
while a role changes or after a restart in another one, what was written last counts.
"""

from collections.abc import Mapping

from pdgate.cluster.directory import (
    MOST_ENTRIES,
    TOO_MANY,
    Event,
    Joined,
    Left,
    Listed,
    Lost,
    Refused,
    Resumed,
)
from pdgate.cluster.member import Member

GRACE_SECONDS = 15.0


class Roster:
    """
    Attributes:
        degraded: Why what is known may be out of date; None if it is not.
        losses: How often the store was lost.
        refused: Key -> why that entry cannot be used.
        listed: Whether the store has ever told what there is.
        remembered_at: When what is in use was true, where the store has told nothing yet and we
            go by an earlier life; else None.
    """

    def __init__(self, grace_seconds: float = GRACE_SECONDS) -> None:
        self.degraded: str | None = None
        self.losses = 0
        self.refused: dict[str, str] = {}
        self.listed = False
        self.remembered_at: float | None = None
        self._grace_seconds = grace_seconds
        self._members: dict[str, Member] = {}
        # host and port -> key
        self._at: dict[tuple[str, int], str] = {}
        self._doubted: dict[str, float] = {}
        self._trusting_from = float("-inf")

    @property
    def in_use(self) -> dict[str, Member]:
        """Key -> member."""
        return {key: member for key, member in self._members.items() if member.takes_calls}

    @property
    def next_change(self) -> float | None:
        """Time at which `expire` has something to do."""
        return min(self._doubted.values(), default=None)

    def remember(self, members: Mapping[str, Member], at: float) -> None:
        """Use members of an earlier life, for as long as the store says nothing."""
        if not self.listed:
            self.remembered_at = at
            for key, member in members.items():
                self._put(key, member)

    def apply(self, event: Event, now: float) -> None:
        match event:
            case Listed(members=members, refused=refused):
                self._list(members, refused, now)
            case Joined(key=key, member=member):
                if key not in self._members and len(self._members) >= MOST_ENTRIES:
                    self._refuse(key, TOO_MANY)
                else:
                    self._put(key, member)
            case Left(key=key):
                self.refused.pop(key, None)
                self._miss(key, now)
            case Refused(key=key, why=why):
                # It was overwritten, so what it was before is no more.
                self._drop(key)
                self._refuse(key, why)
            case Lost(why=why):
                if self.degraded is None:
                    self.losses += 1
                self.degraded = why
            case Resumed():
                self._answers_again(now)

    def expire(self, now: float) -> None:
        """Drops those who were doubted for too long."""
        for key in [key for key, until in self._doubted.items() if until <= now]:
            # While the store is away, they cannot say that they are there.
            if self.degraded is None:
                self._drop(key)
            else:
                self._doubted[key] = now + self._grace_seconds

    def _list(self, members: Mapping[str, Member], refused: Mapping[str, str], now: float) -> None:
        # Otherwise a watch that began anew while all was well would start a time of doubt.
        if self.degraded is not None:
            self._answers_again(now)
        self.listed, self.remembered_at = True, None
        for key, member in members.items():
            self._put(key, member)
        for key in [key for key in self._members if key not in members]:
            if key in refused:
                self._drop(key)
            else:
                self._miss(key, now)
        self.refused = dict(refused)

    def _answers_again(self, now: float) -> None:
        self.degraded = None
        self._trusting_from = now + self._grace_seconds

    def _put(self, key: str, member: Member) -> None:
        place = (member.host, member.port)
        before = self._at.get(place, key)
        if before != key:
            self._drop(before)
        self._at[place] = key
        self._members[key] = member
        self._doubted.pop(key, None)
        self.refused.pop(key, None)

    def _refuse(self, key: str, why: str) -> None:
        if key in self.refused or len(self.refused) < MOST_ENTRIES:
            self.refused[key] = why

    def _miss(self, key: str, now: float) -> None:
        member = self._members.get(key)
        if member is None:
            return
        may_be_there = self.degraded is not None or now < self._trusting_from
        if may_be_there and member.takes_calls:
            self._doubted.setdefault(key, now + self._grace_seconds)
        else:
            self._drop(key)

    def _drop(self, key: str) -> None:
        member = self._members.pop(key, None)
        if member is not None:
            self._at.pop((member.host, member.port), None)
        self._doubted.pop(key, None)
