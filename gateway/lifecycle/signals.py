"""Signals and their meaning to a process that serves.

    SIGTERM, SIGINT     drain; once more SIGINT: end now
    SIGHUP              read the configuration again

uvicorn has its own handlers of the first two, which stop at once. They are kept, and called
when the drain is over, so that all else about its end is uvicorn's.

Whatever keeps a process from its end then (a callback that spins, a task that swallows its
cancellation, a thread that hangs), the kernel ends it by SIGALRM, ENDING_SECONDS after the drain had
to be over: its exit status shows that.
"""

import asyncio
import signal
from contextlib import suppress
from types import FrameType
from typing import Final

from pdgate.gateway.config import ConfigError
from pdgate.gateway.lifecycle.drain import Drain
from pdgate.gateway.lifecycle.reload import Reload

ENDING_SECONDS: Final = 15.0
"""From the end of a drain to that of the process: uvicorn's 2 s for connections, 5 s for background
jobs, 3 s for the last log lines, and as much again for a busy machine."""


def take_over(drain: Drain, reload: Reload) -> None:
    """Take the signals over once uvicorn serves, in the main thread's loop."""
    loop = asyncio.get_running_loop()
    stop = signal.getsignal(signal.SIGTERM)
    assert callable(stop)
    # Its default is the end of the process, which needs nothing of Python's.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def finish() -> None:
        signal.setitimer(signal.ITIMER_REAL, ENDING_SECONDS)
        stop(signal.SIGTERM, None)

    drain.finish = finish

    def end(number: int, frame: FrameType | None) -> None:
        if drain.began is None:
            seconds = max(drain.grace_seconds, drain.notice_seconds) + ENDING_SECONDS
            signal.setitimer(signal.ITIMER_REAL, seconds)
        if number == signal.SIGINT and drain.began is not None:
            stop(number, frame)
        else:
            loop.call_soon_threadsafe(drain.begin)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)

    async def again() -> None:
        # The log has said why, and nothing else is to be done.
        with suppress(ConfigError):
            await reload.request()

    reloading: set[asyncio.Task[None]] = set()

    def begin() -> None:
        task = loop.create_task(again())
        reloading.add(task)
        task.add_done_callback(reloading.discard)

    signal.signal(signal.SIGHUP, lambda *_: loop.call_soon_threadsafe(begin))
