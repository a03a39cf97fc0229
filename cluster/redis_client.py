"""A client of Redis for callers that try again themselves, and what its errors mean."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from pdgate.cluster.directory import StoreAway

T = TypeVar("T")


def client(url: str, answer_seconds: float) -> Redis:
    """One that connects when it is asked for something, and waits so long for an answer."""
    return Redis.from_url(
        url,
        socket_timeout=answer_seconds,
        socket_connect_timeout=answer_seconds,
        retry=Retry(NoBackoff(), 0),
    )


async def asked(answer: Awaitable[T]) -> T:
    """The answer. Raises StoreAway, with the reason, if there is none."""
    try:
        return await cancellable(answer)
    # The client leaves some errors of the system and of asyncio as they are.
    except (RedisError, OSError) as error:
        raise StoreAway(f"Redis: {error or type(error).__name__}") from error


async def cancellable(answer: Awaitable[T]) -> T:
    """The answer; raise CancelledError if we were cancelled while it came, whatever it is.

    redis-py sends inside asyncio.wait_for, which until Python 3.12 takes a result that is there
    already for more important than being cancelled at that moment, and an error that Redis says is
    one, too. A loop that asks for ever would then go on for ever, and the process that waits for
    it would never end.

    Source: CPython 3.11, asyncio/tasks.py, wait_for; redis-py 7.4, asyncio/connection.py,
    send_packed_command.
    """
    task = asyncio.current_task()
    # Cleaning up after a cancellation may still ask.
    before = task.cancelling() if task else 0
    try:
        found = await answer
    except Exception:
        if task and task.cancelling() > before:
            raise asyncio.CancelledError from None
        raise
    if task and task.cancelling() > before:
        raise asyncio.CancelledError
    return found
