"""What replicas tell each other in passing: a stream in Redis that forgets its beginning.

    {pdgate:prompts}     data: a batch of one process; at most about MOST_BATCHES of them

Who reads has its own place in it; whoever was away for longer than it reaches has missed the rest. What was written
by ourselves comes back, too, and is known by what is in it.
"""

from collections.abc import Sequence
from typing import Any, Final

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from pdgate.cluster.cancellable import cancellable
from pdgate.gateway.replicas.board import BoardAway, Stream

KEY: Final = "{pdgate:prompts}"
FIELD: Final = b"data"
ANSWER_SECONDS: Final = 1.0

MOST_BATCHES: Final = 600
"""At 64 KiB at most, 40 MB; Redis trims whole nodes of a hundred."""

AT_A_TIME: Final = 100
"""Batches that are read at once: so long a process does nothing else."""


class RedisStream(Stream):
    def __init__(self, url: str) -> None:
        """Connects with the first exchange."""
        self._read = b"0-0"
        # Whoever exchanges will do so again.
        self._redis = redis.Redis.from_url(
            url,
            socket_timeout=ANSWER_SECONDS,
            socket_connect_timeout=ANSWER_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )

    async def exchange(self, batch: bytes | None) -> Sequence[bytes]:
        try:
            async with self._redis.pipeline(transaction=False) as asked:
                if batch is not None:
                    asked.xadd(KEY, {FIELD: batch}, maxlen=MOST_BATCHES, approximate=True)
                asked.xread({KEY: self._read}, count=AT_A_TIME)
                found: list[Any] = await cancellable(asked.execute())
        except (RedisError, OSError) as error:
            raise BoardAway(f"Redis: {error or type(error).__name__}") from error
        news = [one for _, entries in found[-1] for one in entries]
        if news:
            self._read = news[-1][0]
        return [fields.get(FIELD, b"") for _, fields in news]

    async def close(self) -> None:
        await self._redis.aclose()
