"""Output queues from the core's thread to the coroutines that wait for answers.

core thread   deliver(outputs of a step)  --call_soon_threadsafe-->  event loop
event loop    one queue for each HTTP request, which may wait for several answers
"""

import asyncio
from collections.abc import Sequence
from functools import partial

from pdgate.engine.core import EngineCore
from pdgate.engine.request import Output, Request


class OutputQueue:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._boxes: dict[str, Mailbox] = {}

    def deliver(self, outputs: Sequence[Output]) -> None:
        """Any thread. Outputs that are not waited for any more are dropped."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._sort, outputs)

    def submit(self, core: EngineCore, requests: Sequence[Request]) -> "Mailbox":
        """Submit requests, on the event loop."""
        box = Mailbox(self, core, [request.id for request in requests])
        self._boxes |= dict.fromkeys(box.open_ids, box)
        for request in requests:
            core.submit(request, partial(self._accepted, box))
        return box

    def _accepted(self, box: "Mailbox") -> None:
        """The core's thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(box.begins)

    def forget(self, request_id: str) -> None:
        self._boxes.pop(request_id, None)

    def _sort(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            if (box := self._boxes.get(output.request_id)) is not None:
                box.put(output)


class Mailbox:
    """Outputs of some requests, in the order in which they came."""

    def __init__(self, room: OutputQueue, core: EngineCore, request_ids: Sequence[str]) -> None:
        self._room = room
        self._core = core
        self._index = {request_id: index for index, request_id in enumerate(request_ids)}
        self._queue: asyncio.Queue[tuple[int, Output]] = asyncio.Queue()
        self.open_ids = dict.fromkeys(request_ids)
        self._unread_ends = len(request_ids)
        self._begun = asyncio.Event()
        self._accepted = False

    def begins(self) -> None:
        """One of them was accepted."""
        self._accepted = True
        self._begun.set()

    async def accepted(self) -> bool:
        """Whether one of them was accepted, once that is known; else there is an output."""
        await self._begun.wait()
        return self._accepted

    def put(self, output: Output) -> None:
        if output.last:
            self._room.forget(output.request_id)
            del self.open_ids[output.request_id]
        self._queue.put_nowait((self._index[output.request_id], output))
        self._begun.set()

    @property
    def done(self) -> bool:
        """Every answer was read to its end."""
        return self._unread_ends == 0

    async def next(self) -> tuple[int, Output]:
        """The next output, and which of the requests it belongs to."""
        index, output = await self._queue.get()
        self._unread_ends -= output.last
        return index, output

    def close(self) -> None:
        """End the reading: abort what is not over."""
        for request_id in self.open_ids:
            self._room.forget(request_id)
            self._core.abort(request_id)
        self.open_ids = {}
