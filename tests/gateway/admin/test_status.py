"""What /ready says of the Redis that replicas share."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from pdgate.gateway.admin.board import Board, BoardAway
from pdgate.gateway.admin.dial import Dial
from pdgate.gateway.admin.status import SharedStatus, State
from pdgate.gateway.config.sections import Disaggregation

PATIENCE_SECONDS = 20.0
ANSWERS, AWAY = True, False


class Scripted(Board):
    """Each look waits for what the test says of it."""

    def __init__(self) -> None:
        self.looks: asyncio.Queue[bool] = asyncio.Queue()
        self.done = asyncio.Semaphore(0)

    async def read(self) -> bytes | None:
        # The look before this one is over.
        self.done.release()
        if await self.looks.get() is AWAY:
            raise BoardAway("gone for lunch")
        return None

    async def pin(self, value: bytes) -> None:
        raise NotImplementedError


class Scene:
    def __init__(self) -> None:
        self.board = Scripted()
        dial = Dial(Disaggregation(), lambda _: None, self.board, look_seconds=0)
        self.status = SharedStatus(dial)
        self._dial = dial

    @asynccontextmanager
    async def following(self) -> AsyncIterator["Scene"]:
        task = asyncio.create_task(self._dial.follow())
        await self.board.done.acquire()
        try:
            yield self
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def after(self, *looks: bool) -> State:
        async with asyncio.timeout(PATIENCE_SECONDS):
            for look in looks:
                self.board.looks.put_nowait(look)
                await self.board.done.acquire()
        return self.status.state


@pytest.mark.parametrize(
    ("looks", "state"),
    [
        ([], State.WAITING),
        ([AWAY, AWAY], State.WAITING),
        ([ANSWERS], State.CURRENT),
        ([ANSWERS, AWAY], State.DEGRADED),
        ([ANSWERS, AWAY, AWAY, ANSWERS], State.CURRENT),
    ],
)
async def test_it_is_degraded_while_redis_is_away(looks: list[bool], state: State) -> None:
    async with Scene().following() as scene:
        assert await scene.after(*looks) is state

        assert scene.status.as_json() == {"state": state}
        (gauge,) = scene.status.collect()
        assert [sample.value for sample in gauge.samples] == [float(state is not State.CURRENT)]
