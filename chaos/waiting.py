"""Waits until something holds, however long that takes on this machine.

    await until(engine_is_well, "an engine that is well", within_seconds=30)

Nothing is concluded from how long it took; the limit is for what will never come.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

PAUSE_SECONDS = 0.02


class NeverHappened(AssertionError):
    """The limit is over, and it does not hold."""


async def until(question: Callable[[], Awaitable[T]], what: str, within_seconds: float = 60.0) -> T:
    """The first answer that is true. Raises NeverHappened with the last one."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_seconds
    while not (answer := await question()):
        if loop.time() > deadline:
            raise NeverHappened(f"waited {within_seconds} s in vain for {what}: {answer!r}")
        await asyncio.sleep(PAUSE_SECONDS)
    return answer
