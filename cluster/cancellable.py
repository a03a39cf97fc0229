"""Makes a cancellation count that a client library loses.

redis-py sends inside asyncio.wait_for, which until Python 3.12 takes a result that is there
already for more important than being cancelled at that moment. Who asks in a loop for ever
would then go on for ever, and the process that waits for it would never end.

Source: CPython 3.11, asyncio/tasks.py, wait_for; redis-py 7.4, asyncio/connection.py,
send_packed_command.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def cancellable(answer: Awaitable[T]) -> T:
    """The answer; raises CancelledError if we were cancelled while it came, whatever it is."""
    task = asyncio.current_task()
    # Who cleans up after it was cancelled may still ask.
    before = task.cancelling() if task else 0
    found = await answer
    if task and task.cancelling() > before:
        raise asyncio.CancelledError
    return found
