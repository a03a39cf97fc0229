"""Low-wakeup server: uvicorn's, which looks after itself once a second and not ten times.

uvicorn wakes up each tenth of a second to see whether it is to end; every tenth time it writes the
date for the heads of answers. In a gateway without calls that was half of all work. Here it is
woken when it is to end, and writes the date.

Source: uvicorn 0.54, server.py, main_loop(), on_tick() and handle_exit().
"""

import asyncio
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Final

import uvicorn
from uvicorn.server import HANDLED_SIGNALS

TICK_SECONDS: Final = 1.0
DATES_TICK: Final = 0
"""One of those at which uvicorn writes the date."""


class LowWakeupServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._wake: Callable[[], None] | None = None

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        # uvicorn listens to signals once its loop runs. A handler of before that raises, which in
        # the first steps of a loop ends it half-way: with a traceback, and not with status 0.
        for number in HANDLED_SIGNALS:
            signal.signal(number, self.handle_exit)
        super().run(sockets)

    async def main_loop(self) -> None:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            # Signals come between any two steps of the loop, also while it sleeps.
            loop.call_soon_threadsafe(woken.set)

        self._wake = wake
        while not await self.on_tick(DATES_TICK):
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await woken.wait()

    def stop_listening(self) -> None:
        """Another process may listen at once; connections that are open go on."""
        for listening in self.servers:
            listening.close()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self._wake is not None:
            self._wake()
