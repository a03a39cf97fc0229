"""Who is cancelled ends, whatever a library makes of it."""

import asyncio
from contextlib import suppress

import pytest
from redis.exceptions import ResponseError

from pdgate.cluster.redis_client import cancellable


async def loses_cancellations(asked: asyncio.Event, refused: bool) -> str:
    asked.set()
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    if refused:
        raise ResponseError("NOTLEADING another process serves batches")
    return "answer"


@pytest.mark.parametrize("refused", [False, True], ids=["answer", "refusal"])
async def test_a_cancellation_that_was_lost_counts(refused: bool) -> None:
    """A line of a batch whose answer was refused while its task was ended asked again for ever."""
    asked = asyncio.Event()
    task = asyncio.create_task(cancellable(loses_cancellations(asked, refused)))
    await asked.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_who_cleans_up_after_it_was_cancelled_may_still_ask() -> None:
    asked, answers = asyncio.Event(), list[str]()

    async def leaves() -> None:
        try:
            asked.set()
            await asyncio.Event().wait()
        finally:
            answers.append(await cancellable(asyncio.sleep(0, "answer")))

    task = asyncio.create_task(leaves())
    await asked.wait()
    task.cancel()
    await asyncio.wait([task])

    assert answers == ["answer"]
