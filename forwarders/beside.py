"""Pair of concurrent legs: one is watched while the other is answered with.

Interpreted, as the group waits for its tasks while it handles what went wrong, and because a task
begins here, whose first coroutine must not be compiled as the others of it are:

An interpreted coroutine keeps the exception that is handled below it for itself while it waits. A
compiled one keeps it where the thread does, so that what runs meanwhile would find it there:
2,400 leaving clients left a chain of 2,319 CancelledErrors, each the context of the next, and to
raise and catch anything took 9.8 us instead of 0.5 (mypyc 2.4: CPy_CatchError in lib-rt/exc_ops.c).
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from pdgate.forwarders.base import Answer
from pdgate.forwarders.record import Deliver, Record
from pdgate.protocols.call import Json

P = ParamSpec("P")
T = TypeVar("T")


async def beside(
    watched: Callable[[], Awaitable[T]], answering: Callable[[asyncio.Task[T]], Awaitable[None]]
) -> None:
    """Ends when `answering` has: what `watched` still says then is of no use.

    If either fails, the other ends. A group wraps what went wrong; this raises the error itself.
    """
    try:
        async with asyncio.TaskGroup() as together:
            watching = together.create_task(task_root(watched))
            await answering(watching)
            watching.cancel()
    except BaseExceptionGroup as group:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            # The client left in the moment of the failure, and before Python 3.13 the
            # group forgets that.
            raise asyncio.CancelledError from None
        raise group.exceptions[0] from None


async def task_root(work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Calls `work` itself: a task that is cancelled before its first step has nothing to leave."""
    return await work(*args, **kwargs)


def unless_failed(prefilling: asyncio.Task[Json], deliver: Deliver) -> Deliver:
    """Delivers unless prefill has failed by now.

    Its group would say so only in the next turn of the event loop, by cancelling this one; the
    first byte would be out by then, and no other engine could be asked.
    """

    async def deliver_(answer: Answer, record: Record) -> None:
        if prefilling.done():
            prefilling.result()
        await deliver(answer, record)

    return deliver_
