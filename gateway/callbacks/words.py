"""Mailbox of a worker: words that attempts wait for, and what was refused. On the event loop only."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum

from pdgate.protocols.call import Json
from pdgate.protocols.members import plain_members

Read = Callable[[bytes], tuple[str, Json]]
"""Of a body or a message: whose word it is, and what it says. Raises BadRequest, ValueError."""


@plain_members
class MessageResult(StrEnum):
    """What became of a message."""

    TAKEN = "taken"
    STRANGER = "stranger"
    """From an address that is not allowed."""
    UNKNOWN = "unknown"
    """For no call that waits: over by now, another worker's, or invented."""
    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    TOO_MANY = "too_many"
    """Connections at a time."""


class Words:
    """
    Attributes:
        counts: Of messages, by what became of them.
    """

    def __init__(self) -> None:
        self._waited_for: dict[str, asyncio.Future[Json]] = {}
        self.counts: Counter[MessageResult] = Counter(dict.fromkeys(MessageResult, 0))

    def __len__(self) -> int:
        return len(self._waited_for)

    @contextmanager
    def expecting(self, key: str) -> Iterator[asyncio.Future[Json]]:
        """The word, once it has been said. Only inside this block a word of this key is taken."""
        said: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._waited_for[key] = said
        try:
            yield said
        finally:
            del self._waited_for[key]
            said.cancel()

    def count(self, result: MessageResult) -> None:
        self.counts[result] += 1

    def say(self, key: str, word: Json) -> MessageResult:
        """The first word counts: engines repeat one whose answer they missed."""
        waited_for = self._waited_for.get(key)
        if waited_for is None:
            return MessageResult.UNKNOWN
        if not waited_for.done():
            waited_for.set_result(word)
        return MessageResult.TAKEN
