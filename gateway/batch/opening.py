"""State of batches by its setting: SQLite in their folder, which one host has, or a Redis, which several share."""

from pathlib import Path
from typing import NamedTuple

from pdgate.gateway.batch.leading import HostLock, Lead
from pdgate.gateway.batch.sqlite import SqliteState
from pdgate.gateway.batch.state import BatchState


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
