"""Directories that announce no changes, so that they are read again and again.

    look, look, ...      --> Listed, then what differs from the look before
    a look that fails    --> Lost, once
    a look that succeeds --> Resumed, and what differs

Of two looks only the difference is seen: who came and went in between was never there.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pdgate.cluster.directory import (
    MOST_BYTES,
    MOST_ENTRIES,
    TOO_MANY,
    Event,
    Left,
    Listed,
    Lost,
    Refused,
    Resumed,
    Tell,
    entry,
    listed,
)
from pdgate.cluster.read_only import ReadOnly


class Unseen(Exception):
    """A look failed, so nothing is known of now; the message says why, for operators."""


@dataclass(frozen=True, slots=True)
class Seen:
    """
    Attributes:
        entries: Key -> value, as they would stand in a store.
        refused: What cannot even be read as entries -> why.
    """

    entries: Mapping[str, bytes]
    refused: Mapping[str, str] = field(default_factory=dict)

    def listed(self) -> Listed:
        found = listed(self.entries)
        return Listed(found.members, {**found.refused, **self.refused})


def changes(before: Seen, after: Seen) -> Iterator[Event]:
    """First the new, then the gone: an engine that changes its key is there all the time."""
    read_bytes = 0
    for number, (key, value) in enumerate(after.entries.items()):
        read_bytes += len(value)
        if number >= MOST_ENTRIES or read_bytes > MOST_BYTES:
            yield Refused(key, TOO_MANY)
            break
        if before.entries.get(key) != value:
            yield entry(key, value)
    for key, why in after.refused.items():
        if before.refused.get(key) != why:
            yield Refused(key, why)
    for key in [*before.entries, *before.refused]:
        if key not in after.entries and key not in after.refused:
            yield Left(key)


class Polled(ReadOnly):
    def __init__(self, every_seconds: float) -> None:
        """Raises ValueError."""
        if not 0 < every_seconds < float("inf"):
            raise ValueError("the seconds between two looks must be positive")
        self._every_seconds = every_seconds

    @abstractmethod
    async def look(self) -> Seen:
        """What is there now. Raises Unseen."""

    async def follow(self, tell: Tell) -> None:
        before: Seen | None = None
        is_lost = False
        while True:
            try:
                seen = await self.look()
            except Unseen as error:
                if not is_lost:
                    tell(Lost(str(error)))
                is_lost = True
            else:
                if before is None:
                    tell(seen.listed())
                else:
                    if is_lost:
                        tell(Resumed())
                    for event in changes(before, seen):
                        tell(event)
                before, is_lost = seen, False
            await asyncio.sleep(self._every_seconds)
