"""A call that takes too long ends with CallTooLong, and with nothing else."""

import asyncio

import pytest

from pdgate.gateway.total_time import TotalTime
from pdgate.protocols.errors import CallTooLong

SHORT = 0.01


async def never() -> None:
    await asyncio.get_running_loop().create_future()


async def test_a_call_that_takes_longer_is_ended() -> None:
    with pytest.raises(CallTooLong, match=r"longer than 0\.01 s"), TotalTime(SHORT, {}).limit("m"):
        await never()

    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_model_has_a_limit_of_its_own() -> None:
    total = TotalTime(None, {"slow": SHORT})

    assert total.limits_any
    with total.limit("other"):
        pass
    with pytest.raises(CallTooLong), total.limit("slow"):
        await never()


async def test_what_ends_in_time_is_not_looked_at_any_more() -> None:
    total = TotalTime(SHORT, {})

    with total.limit("m"):
        pass
    with pytest.raises(CallTooLong), total.limit("m"):
        # The clock has gone on for longer than the first call's limit.
        await never()


async def test_who_leaves_while_time_runs_out_has_left() -> None:
    """The client's going must not become an answer to nobody."""
    entered = asyncio.Event()

    async def call() -> None:
        with TotalTime(60, {}).limit("m"):
            entered.set()
            await never()

    calling = asyncio.create_task(call())
    await entered.wait()
    calling.cancel()

    with pytest.raises(asyncio.CancelledError):
        await calling


async def test_who_left_and_was_too_late_as_well_has_left() -> None:
    calls: list[asyncio.Task[None]] = []

    async def call() -> None:
        with TotalTime(SHORT, {}).limit("m"):
            try:
                await never()
            except asyncio.CancelledError:
                # The limit has come; before it is told of, the client leaves.
                calls[0].cancel()
                raise

    calls.append(asyncio.create_task(call()))

    with pytest.raises(asyncio.CancelledError):
        await calls[0]


async def test_what_fails_by_itself_keeps_its_error() -> None:
    with pytest.raises(KeyError), TotalTime(60, {}).limit("m"):
        raise KeyError
