"""A store of one value that several processes share: pinned by one, seen by all a moment later.

It is looked at every second or so rather than announced, because a look that failed can be
made again, and an announcement that was missed cannot.
"""

import asyncio
from abc import ABC, abstractmethod
from enum import StrEnum
from pathlib import Path

from pdgate.cluster.directory import StoreAway
from pdgate.protocols.errors import GatewayError

ANSWER_SECONDS = 3.0
"""Of a Redis."""
MOST_BYTES = 1 << 20
"""Of a value."""


class StoreState(StrEnum):
    """State of a store, as operators see it on /ready."""

    WAITING = "waiting"
    """It has not answered since this process started."""
    DEGRADED = "degraded"
    """It does not answer any more."""
    CURRENT = "current"
    """It answers."""


class NotShared(GatewayError):
    """A change that was not made, or not for sure: repeating it is safe."""

    status, code = 503, "not_shared"


class SharedStore(ABC):
    """Store of one setting, as one process sees it."""

    @abstractmethod
    async def read(self) -> bytes | None:
        """What is pinned; None if nothing is. Raises StoreAway."""

    @abstractmethod
    async def pin(self, value: bytes) -> None:
        """Raises StoreAway, and then it may be pinned or not."""

    async def close(self) -> None:
        return


class FileStore(SharedStore):
    """One file, for the workers of one gateway."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def read(self) -> bytes | None:
        try:
            return await asyncio.to_thread(self._path.read_bytes)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreAway(str(error)) from error

    async def pin(self, value: bytes) -> None:
        try:
            await asyncio.to_thread(self._replace, value)
        except OSError as error:
            raise StoreAway(str(error)) from error

    def _replace(self, value: bytes) -> None:
        # Half of it must not be read.
        unfinished = self._path.with_suffix(".new")
        unfinished.write_bytes(value)
        unfinished.replace(self._path)


class RedisStore(SharedStore):
    """One key in a Redis, which replicas of the gateway share."""

    def __init__(self, url: str, key: str) -> None:
        """Connects with the first look."""
        # Only where a Redis is configured is its package there.
        from pdgate.cluster.redis_client import asked, client

        self._key = key
        self._asked = asked
        self._redis = client(url, ANSWER_SECONDS)

    async def read(self) -> bytes | None:
        # Any client of the Redis can write there what it likes.
        found: bytes = await self._asked(self._redis.getrange(self._key, 0, MOST_BYTES))
        if len(found) > MOST_BYTES:
            raise StoreAway(f"Redis: what stands in {self._key} has more than {MOST_BYTES} bytes")
        return found or None

    async def pin(self, value: bytes) -> None:
        await self._asked(self._redis.set(self._key, value))

    async def close(self) -> None:
        await self._redis.aclose()
