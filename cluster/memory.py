"""A directory inside one process: for tests, and for engine and gateway in one program."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pdgate.cluster.directory import Directory, Event, Left, Tell, entry, listed
from pdgate.cluster.member import Member


class Memory(Directory):
    def __init__(self) -> None:
        self._entries: dict[str, bytes] = {}
        self._followers: list[Tell] = []

    @asynccontextmanager
    async def announce(self, member: Member) -> AsyncIterator[None]:
        ours = member.value()
        self.put(member.key, ours)
        try:
            yield
        finally:
            # Whoever took the place meanwhile, at the same address, keeps it.
            if self._entries.get(member.key) is ours:
                self.delete(member.key)

    async def follow(self, tell: Tell) -> None:
        tell(listed(self._entries))
        self._followers.append(tell)
        try:
            await asyncio.Event().wait()
        finally:
            self._followers.remove(tell)

    def put(self, key: str, value: bytes) -> None:
        """As an engine of another make would write it."""
        self._entries[key] = value
        self._tell(entry(key, value))

    def delete(self, key: str) -> None:
        if self._entries.pop(key, None) is not None:
            self._tell(Left(key))

    def _tell(self, event: Event) -> None:
        for tell in list(self._followers):
            tell(event)
