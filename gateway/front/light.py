"""What uvicorn keeps for each connection and hot calls never use, made only when it is needed.

A deque takes 600 bytes, and so does an event, which has one. Of a thousand streams that is more than
a megabyte. The names are uvicorn's (`hot_protocol.NEEDED` sees to it that they are there).

Source: uvicorn 0.54, protocols/http/flow_control.py.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl


class LightFlow(FlowControl):
    """Whether a client reads what is written; only cycles of uvicorn's wait for that."""

    __slots__ = ("_transport", "_writable", "read_paused", "write_paused")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.read_paused = False
        self.write_paused = False
        self._writable: asyncio.Event | None = None

    async def drain(self) -> None:
        if self.write_paused:
            if self._writable is None:
                self._writable = asyncio.Event()
            await self._writable.wait()

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        if self._writable is not None:
            self._writable.set()
            self._writable = None


class LightPipeline(list[Any]):
    """Requests that came early; nearly always none."""

    __slots__ = ()

    def appendleft(self, request: Any) -> None:
        self.insert(0, request)
