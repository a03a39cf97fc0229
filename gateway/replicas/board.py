"""Where processes of replicas find each other's entries: the contract (redis_board.py fulfils it)."""

from abc import ABC, abstractmethod
from collections.abc import Mapping


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
