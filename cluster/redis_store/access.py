"""Access to the Redis of a directory."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from redis.asyncio import Redis

from pdgate.cluster import redis_client
from pdgate.cluster.redis_store import scripts

ANSWER_SECONDS = 2.0
SCHEMES = ("redis", "rediss")


def check(url: str) -> None:
    """Raises ValueError, without the secrets that a URL may hold."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES or not parts.netloc:
        raise ValueError("the URL of a Redis is redis://host:port/number, or rediss://...")


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Redis]:
    """Connects when it is asked for something."""
    client = redis_client.client(url, ANSWER_SECONDS)
    try:
        yield client
    finally:
        await client.aclose()


class Script:
    """One of `scripts`, on its keys."""

    def __init__(self, client: Redis, text: str) -> None:
        self._run = client.register_script(text)

    async def __call__(self, *words: str | bytes | int) -> Any:
        """Raises StoreAway."""
        return await redis_client.asked(self._run(keys=scripts.KEYS, args=words))
