"""An event loop without sockets and without a clock, on which a run can be repeated exactly.

    what is ready  -->  else the next arrival  -->  else the next timer, and time jumps to it

Bytes that were sent arrive only when nothing else is to be done, one piece at a time: every
event of a stream wakes its reader alone, as from an engine that makes one token after another.
While there is anything to do time stands still, so no timer fires in the middle of a run.

What calls ask of it is counted (`Operations`): here it costs little, but a task, a timer or a
write costs microseconds on a real loop, which no count of instructions shows.
"""

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any, TypeVar, TypeVarTuple

from asyncio.events import _set_running_loop  # isort: skip  # Exported for authors of loops.

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Coro = Coroutine[Any, Any, T] | Generator[Any, None, T]
Connect = Callable[[Callable[[], asyncio.BaseProtocol], int], tuple[Any, Any]]

FIRST_TIME, LAST_TIME = 1000.0, 2000.0
"""Seconds. What is being waited for has happened by then, or never will."""


class Stuck(Exception):
    """Somebody waits, and nothing will ever happen any more."""


@dataclass(slots=True)
class Operations:
    """How often each was asked for.

    Attributes:
        callbacks: call_soon, by whom ever: most are wake-ups of a task.
        writes: To any connection; each is a system call.
    """

    tasks: int = 0
    futures: int = 0
    timers: int = 0
    callbacks: int = 0
    writes: int = 0

    def since(self, before: "Operations") -> dict[str, int]:
        was = asdict(before)
        return {name: now - was[name] for name, now in asdict(self).items()}


class StillLoop(asyncio.AbstractEventLoop):
    """What it lacks raises NotImplementedError, so nothing is left out in silence.

    Attributes:
        connect: Who answers at a port (`memory_wire.py`).
        operations: Counted since it was made.
    """

    def __init__(self, connect: Connect) -> None:
        self.connect = connect
        self.operations = Operations()
        self._ready: deque[asyncio.Handle] = deque()
        self._arrivals: deque[tuple[Callable[[bytes], None], bytes]] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._order = count()
        self._now = FIRST_TIME
        self._running = False

    def arrive(self, at: Callable[[bytes], None], piece: bytes) -> None:
        """When all that is ready has been done."""
        self._arrivals.append((at, piece))

    def run_until_complete(self, future: Any) -> Any:
        if not isinstance(future, asyncio.Future):
            future = asyncio.Task(future, loop=self)
        self._running = True
        _set_running_loop(self)
        try:
            self._run(future)
        finally:
            self._end_tasks()
            _set_running_loop(None)
            self._running = False
        return future.result()

    def _run(self, until: asyncio.Future[Any]) -> None:
        ready, arrivals, timers = self._ready, self._arrivals, self._timers
        while not until.done():
            if ready:
                handle = ready.popleft()
                if not handle.cancelled():
                    handle._run()
            elif arrivals:
                at, piece = arrivals.popleft()
                at(piece)
            elif timers:
                due, _, timer = heapq.heappop(timers)
                if due > LAST_TIME:
                    raise Stuck
                if not timer.cancelled():
                    self._now = due
                    timer._run()
            else:
                raise Stuck

    def _end_tasks(self) -> None:
        """Nobody is left waiting, whatever the run came to."""
        left = asyncio.all_tasks(self)
        for task in left:
            task.cancel()
        for task in left:
            self._run(task)
            if not task.cancelled():
                # Read, so that asyncio does not complain of it: the run's own error says more.
                task.exception()

    # What asyncio and its users call.

    def time(self) -> float:
        return self._now

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        self.operations.callbacks += 1
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        self.operations.timers += 1
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It stays where it is until its time has come."""

    def create_future(self) -> asyncio.Future[Any]:
        self.operations.futures += 1
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coro[T],
        *,
        name: object = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        self.operations.tasks += 1
        given = None if name is None else str(name)
        return asyncio.Task(coro, loop=self, name=given, context=context)

    def get_task_factory(self) -> None:
        """None: create_task is all."""

    async def create_connection(
        self,
        protocol_factory: Callable[[], Any],
        host: Any = None,
        port: Any = None,
        **_: Any,
    ) -> tuple[Any, Any]:
        return self.connect(protocol_factory, port)

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return False

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Whatever somebody failed to handle is a mistake here."""
        raise RuntimeError(context["message"]) from context.get("exception")
