"""What signals mean to a process that serves.

    SIGTERM, SIGINT     drain; once more SIGINT: end now
    SIGHUP              read the configuration again

uvicorn has its own handlers of the first two, which stop at once. They are kept, and called
when the drain is over, so that all else about its end is uvicorn's.
"""

import asyncio
import signal
from contextlib import suppress
from types import FrameType

from pdgate.gateway.config import ConfigError
from pdgate.gateway.lifecycle.drain import Drain
from pdgate.gateway.lifecycle.reload import Reload


def take_over(drain: Drain, reload: Reload) -> None:
    """To be called where uvicorn has begun to serve: in the loop, in the main thread."""
    loop = asyncio.get_running_loop()
    stop = signal.getsignal(signal.SIGTERM)
    assert callable(stop)
    drain.finish = lambda: stop(signal.SIGTERM, None)

    def end(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and drain.began is not None:
            stop(number, frame)
        else:
            loop.call_soon_threadsafe(drain.begin)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)

    def again() -> None:
        # The log has said why, and there is nobody else to tell.
        with suppress(ConfigError):
            reload.again()

    signal.signal(signal.SIGHUP, lambda *_: loop.call_soon_threadsafe(again))
