"""A board in Redis: one key, which replicas of the gateway share."""

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from pdgate.cluster.cancellable import cancellable
from pdgate.gateway.admin.board import Board, BoardAway

ANSWER_SECONDS = 3.0


class RedisBoard(Board):
    def __init__(self, url: str, key: str) -> None:
        """Connects with the first look."""
        self._key = key
        # Whoever looks will look again.
        self._redis = redis.Redis.from_url(
            url,
            socket_timeout=ANSWER_SECONDS,
            socket_connect_timeout=ANSWER_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )

    async def read(self) -> bytes | None:
        try:
            found: bytes | None = await cancellable(self._redis.get(self._key))
        except (RedisError, OSError) as error:
            raise BoardAway(_why(error)) from error
        return found

    async def pin(self, value: bytes) -> None:
        try:
            await cancellable(self._redis.set(self._key, value))
        except (RedisError, OSError) as error:
            raise BoardAway(_why(error)) from error

    async def close(self) -> None:
        await self._redis.aclose()


def _why(error: Exception) -> str:
    return f"Redis: {error or type(error).__name__}"
