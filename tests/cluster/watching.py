"""Follows a directory and waits for what it tells, by event and not by time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from pdgate.cluster.directory import Directory, Event
from pdgate.cluster.member import Member
from pdgate.protocols.instance import Role
from tests.support import waiting

E = TypeVar("E", bound=Event)

PATIENCE_SECONDS = waiting.PATIENCE_SECONDS

P = Member(Role.PREFILL, "10.0.0.1", 8100, protocol="vllm-nixl", epoch="one", kv="10.0.0.1:5600")
D = Member(Role.DECODE, "10.0.0.2", 8200, protocol="vllm-nixl", model="m", block_tokens=16)


class Told:
    """The events, in order."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Event] = asyncio.Queue()
        self.tell: Callable[[Event], None] = self._queue.put_nowait

    async def next(self) -> Event:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self._queue.get()

    async def until(self, wanted: E) -> list[Event]:
        """Everything before it."""
        before: list[Event] = []
        while (event := await self.next()) != wanted:
            before.append(event)
        return before

    async def first(self, kind: type[E]) -> E:
        while not isinstance(event := await self.next(), kind):
            pass
        return event

    def nothing_more(self) -> bool:
        return self._queue.empty()


@asynccontextmanager
async def following(directory: Directory) -> AsyncIterator[Told]:
    told = Told()
    task = asyncio.create_task(directory.follow(told.tell))
    try:
        yield told
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()
