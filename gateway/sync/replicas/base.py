"""Contracts of what processes of replicas share: entries with leases, and a stream.

LoadEntries   what stands for each, as long as its lease goes on     in_redis.py
Stream        what each says once                                    in_redis.py
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence


class LoadEntries(ABC):
    """Load entries of all replicas, as one process sees them."""

    @abstractmethod
    async def exchange(self, entry: bytes | None) -> Mapping[str, bytes]:
        """Other process -> its entry, of all that have one; empty for a lease that is none.

        `entry`: what stands for us from now on, with a new lease; None to leave it. Raises StoreAway,
        and then it may have been written or not.
        """

    @abstractmethod
    async def close(self) -> None:
        """The others need not wait for our lease to end."""


class ReplicaStream(ABC):
    """A stream that replicas share, as one process sees it."""

    @abstractmethod
    async def exchange(self, batch: bytes | None) -> Sequence[bytes]:
        """Writes ours, if any, and returns what has come since the last time, ours included.

        Raises StoreAway, and then it may have been written or not.
        """

    @abstractmethod
    async def close(self) -> None:
        """Let go of the store."""
