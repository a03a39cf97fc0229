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
    Lost     the store does not answer: what is known so far may be out of date
    Resumed  it answers again; what was missed follows, as single events or as a Listed

Lost is emitted once for each loss; Listed or Resumed ends it. A store that cannot be reached
is never an exception for either side.

    await listing.revoked()                     the entry was taken away while it had a lease: the
                                                operator wants this engine to leave
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import ClassVar, Final

from pdgate.cluster.member import BadMember, Member, read

MOST_ENTRIES: Final = 2048
"""Of a directory: write access to the store can forge any number, and to read one takes 10 us."""
MOST_BYTES: Final = 1 << 20
"""Of all of them; an engine writes some 300."""
TOO_MANY: Final = (
    f"there are more than {MOST_ENTRIES} entries, or {MOST_BYTES} bytes of them: it is not read"
)


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


class Revoked(Exception):
    """The entry was taken away by another hand, while its lease lasted."""


class Listing(ABC):
    """One's own entry, for as long as it is announced."""

    async def revoked(self) -> None:
        """Return when the entry was taken away; never where a store cannot tell that.

        An entry whose lease ran out, or that went with a store's contents, was not: it is made again.
        """
        await asyncio.Event().wait()

    @abstractmethod
    async def change(self, member: Member) -> None:
        """List this from now on, of the same process; return when the store has it.

        A caller that does not wait for that has still said it: it is listed as soon as it can be.
        """


class Directory(ABC):
    """
    Attributes:
        one_process: Whether a single process can follow it: engines say to one port where they are.
    """

    one_process: ClassVar[bool] = False

    @abstractmethod
    def announce(self, member: Member) -> AbstractAsyncContextManager[Listing]:
        """The member is listed while the block runs; its end waits for at most seconds."""

    @abstractmethod
    async def follow(self, tell: Tell) -> None:
        """Tells everything that happens, in order, until it is cancelled."""


def entry(key: str, value: bytes) -> Joined | Refused:
    """The change that an entry that was written makes."""
    try:
        return Joined(key, read(key, value))
    except BadMember as error:
        return Refused(key, str(error))


def listed(entries: Mapping[str, bytes]) -> Listed:
    """Members in the order of the entries, which is that in which they were written.

    What is beyond MOST_ENTRIES or MOST_BYTES is not read, and the first of that is refused.
    """
    members, refused = {}, {}
    read_bytes = 0
    for number, (key, value) in enumerate(entries.items()):
        read_bytes += len(value)
        if number >= MOST_ENTRIES or read_bytes > MOST_BYTES:
            refused[key] = TOO_MANY
            break
        match entry(key, value):
            case Joined(member=member):
                members[key] = member
            case Refused(why=why):
                refused[key] = why
    return Listed(members, refused)
