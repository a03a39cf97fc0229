"""Leading: which one of all processes that share a state serves its batches.

HostLock      processes of one host: a lock of the operating system (here)
RedisLease    of several hosts: a lease in Redis, and writes that are refused without it (redis_lease.py)
"""

import asyncio
import fcntl
import os
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from pdgate.gateway.batch.sqlite import SqliteState
from pdgate.gateway.batch.state import BatchState, StateAway

LOCK: Final = "runner.lock"


class Lead(Protocol):
    """Contract: take, then hold until it returns or is cancelled, then resign."""

    async def take(self) -> bool:
        """Return whether this process leads from now on. Raise StateAway."""

    async def hold(self) -> None:
        """Keep the lead; return once another process may have it."""

    async def resign(self) -> None:
        """Let another process have it."""


class HostLock:
    """Lead by a lock of this host, which ends with its process, however that ends, and never before."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock: int | None = None

    async def take(self) -> bool:
        try:
            return self._locked()
        except OSError as error:
            raise StateAway("the folder of batches cannot be reached") from error

    async def hold(self) -> None:
        await asyncio.Event().wait()

    async def resign(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _locked(self) -> bool:
        if self._lock is not None:
            return True
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock
        return True


class OpenState(NamedTuple):
    """
    Attributes:
        routed: As the routes of any process write it.
        led: As the process that leads writes it.
    """

    routed: BatchState
    led: BatchState
    lead: Lead


def opened(redis: str, folder: Path) -> OpenState:
    """`redis`: its URL, or empty. Nothing is connected yet."""
    if not redis:
        state = SqliteState(folder)
        return OpenState(state, state, HostLock(folder))
    # Only where a Redis is configured is its package there.
    from pdgate.gateway.batch.in_redis import RedisState
    from pdgate.gateway.batch.redis_access import BatchRedis
    from pdgate.gateway.batch.redis_lease import RedisLease

    connected, lease = BatchRedis(redis), RedisLease(redis)
    return OpenState(RedisState(connected), RedisState(connected, lease), lease)
