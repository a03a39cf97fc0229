"""Where processes of replicas find what the others tell: two contracts.

Board     what stands for each, as long as its lease goes on     redis_board.py
Stream    what each says once                                    redis_stream.py
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence


class BoardAway(Exception):
    """It cannot be reached; the message says why, for operators."""


class Board(ABC):
    """Seen by one process."""

    @abstractmethod
    async def exchange(self, entry: bytes | None) -> Mapping[str, bytes]:
        """Other process -> its entry, of all that have one; empty for a lease that is none.

        `entry`: what stands for us from now on, with a new lease; None to leave it. Raises BoardAway,
        and then it may have been written or not.
        """

    @abstractmethod
    async def close(self) -> None:
        """The others need not wait for our lease to end."""


class Stream(ABC):
    """Seen by one process."""

    @abstractmethod
    async def exchange(self, batch: bytes | None) -> Sequence[bytes]:
        """Writes ours, if any, and returns what has come since the last time, ours included.

        Raises BoardAway, and then it may have been written or not.
        """

    @abstractmethod
    async def close(self) -> None:
        """It is used no more."""
