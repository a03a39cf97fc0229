"""A client of Redis for those who will try again themselves, and what its errors mean."""

from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from pdgate.cluster.cancellable import cancellable
from pdgate.cluster.directory import StoreAway
from pdgate.cluster.redis_store import scripts

T = TypeVar("T")

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
    client = Redis.from_url(
        url,
        socket_timeout=ANSWER_SECONDS,
        socket_connect_timeout=ANSWER_SECONDS,
        retry=Retry(NoBackoff(), 0),
    )
    try:
        yield client
    finally:
        await client.aclose()


@contextmanager
def translated() -> Iterator[None]:
    """Raises StoreAway for what the client raises."""
    try:
        yield
    # It leaves some errors of the system and of asyncio as they are.
    except (RedisError, OSError) as error:
        raise StoreAway(f"Redis: {error or type(error).__name__}") from None


async def asked(answer: Awaitable[T]) -> T:
    """The answer. Raises StoreAway."""
    with translated():
        return await cancellable(answer)


class Script:
    """One of `scripts`, on its keys."""

    def __init__(self, client: Redis, text: str) -> None:
        self._run = client.register_script(text)

    async def __call__(self, *words: str | bytes | int) -> Any:
        """Raises StoreAway."""
        return await asked(self._run(keys=scripts.KEYS, args=words))
