"""A directory inside one process: for tests, and for engine and gateway in one program."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pdgate.cluster.directory import Directory, Event, Left, Listing, Tell, entry, listed
from pdgate.cluster.member import Member


class MemoryDirectory(Directory):
    def __init__(self) -> None:
        self._entries: dict[str, bytes] = {}
        self._followers: list[Tell] = []
        self._listings: list[_Listing] = []

    @asynccontextmanager
    async def announce(self, member: Member) -> AsyncIterator[Listing]:
        listing = _Listing(self, member)
        self._listings.append(listing)
        try:
            yield listing
        finally:
            self._listings.remove(listing)
            listing.end()

    async def follow(self, tell: Tell) -> None:
        tell(listed(self._entries))
        self._followers.append(tell)
        try:
            await asyncio.Event().wait()
        finally:
            self._followers.remove(tell)

    def put(self, key: str, value: bytes) -> None:
        """Put an entry as an engine of another make would write it."""
        self._entries.pop(key, None)
        self._entries[key] = value
        self._tell(entry(key, value))

    def get(self, key: str) -> bytes | None:
        return self._entries.get(key)

    def delete(self, key: str) -> None:
        if self._entries.pop(key, None) is not None:
            self._tell(Left(key))
            for listing in [one for one in self._listings if one.key == key]:
                listing.gone.set()

    def _tell(self, event: Event) -> None:
        for tell in list(self._followers):
            tell(event)


class _Listing(Listing):
    def __init__(self, memory: MemoryDirectory, member: Member) -> None:
        self._memory = memory
        self.gone = asyncio.Event()
        self._put(member)

    async def revoked(self) -> None:
        await self.gone.wait()

    async def change(self, member: Member) -> None:
        before, ours = self.key, self._ours
        self._put(member)
        self._drop(before, ours)

    def end(self) -> None:
        self._drop(self.key, self._ours)

    def _put(self, member: Member) -> None:
        self.key, self._ours = member.key, member.value()
        self._memory.put(self.key, self._ours)

    def _drop(self, key: str, ours: bytes) -> None:
        # An engine that took the place meanwhile, at the same address, keeps it.
        if self._memory.get(key) is ours:
            self._memory.delete(key)
