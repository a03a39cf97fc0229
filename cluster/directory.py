"""The contract of a directory of engines.

    async with directory.announce(member) as listing:      the engine
        ...                                     others see it, as soon as the store can be reached
        await listing.change(another)           in one step: never both, never none of them
                                                it has left, before the block is over

    await directory.follow(tell)                the gateway: calls tell(event) until cancelled

    Listed   everything there is: at first, and whenever events may have been missed
    Joined   an entry is new or says something else
    Left     an entry is gone
    Refused  an entry is there and cannot be used
    Lost     the store does not answer: what was told so far may be out of date
    Resumed  it answers again; what was missed follows, as single events or as a Listed

Lost is told once for each loss; Listed or Resumed ends it. A store that cannot be reached
is never an exception for either side.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from pdgate.cluster.member import BadMember, Member, read


@dataclass(frozen=True, slots=True)
class Listed:
    """
    Attributes:
        members: Key -> member, what was written last at the end.
        refused: Key -> why that entry cannot be used.
    """

    members: Mapping[str, Member]
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Joined:
    key: str
    member: Member


@dataclass(frozen=True, slots=True)
class Left:
    key: str


@dataclass(frozen=True, slots=True)
class Refused:
    key: str
    why: str


@dataclass(frozen=True, slots=True)
class Lost:
    why: str


@dataclass(frozen=True, slots=True)
class Resumed:
    pass


Event = Listed | Joined | Left | Refused | Lost | Resumed
Tell = Callable[[Event], None]


class StoreAway(Exception):
    """A store did not do what it was asked to; another try may help. The message says why."""


class Listing(ABC):
    """One's own entry, for as long as it is announced."""

    @abstractmethod
    async def change(self, member: Member) -> None:
        """From now on this is listed, of the same process; returns when the store has it.

        Whoever does not wait for that has still said it: it is listed as soon as it can be.
        """


class Directory(ABC):
    @abstractmethod
    def announce(self, member: Member) -> AbstractAsyncContextManager[Listing]:
        """The member is listed while the block runs; its end waits for at most seconds."""

    @abstractmethod
    async def follow(self, tell: Tell) -> None:
        """Tells everything that happens, in order, until it is cancelled."""


def entry(key: str, value: bytes) -> Joined | Refused:
    """What an entry that was written is told as."""
    try:
        return Joined(key, read(key, value))
    except BadMember as error:
        return Refused(key, str(error))


def listed(entries: Mapping[str, bytes]) -> Listed:
    """In the order of the entries, which is that in which they were written."""
    members, refused = {}, {}
    for key, value in entries.items():
        match entry(key, value):
            case Joined(member=member):
                members[key] = member
            case Refused(why=why):
                refused[key] = why
    return Listed(members, refused)
