"""Waits for what another thread, process or task does, where no event says that it is done.

    wait_until(lambda: core.gauges.blocks_used == 0, "pages that are free")
    await until(lambda: ready(gateway), "a gateway that is ready")

Nothing is concluded from how long it took: the limit is for what never comes, and so long that a
machine with other things to do keeps it.
"""

import asyncio
import inspect
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 60.0
"""After which a test gives up; what it waits for takes a fraction."""

PAUSE_SECONDS = 0.005
LONGEST_PAUSE_SECONDS = 0.1
LONGER = 1.2
"""Each pause than the one before: a busy machine, where waits are long, is not made busier by the questions."""


def pauses(first: float = PAUSE_SECONDS) -> Iterator[float]:
    pause = first
    while True:
        yield pause
        pause = min(LONGER * pause, LONGEST_PAUSE_SECONDS)


class InVain(AssertionError):
    """The limit is over, and what was waited for is not so."""


def wait_until(question: Callable[[], T], what: str, seconds: float = PATIENCE_SECONDS) -> T:
    """The first answer that is true. Raises InVain with the last one."""
    deadline = time.monotonic() + seconds
    for pause in pauses():
        if answer := question():
            return answer
        if time.monotonic() > deadline:
            raise InVain(f"waited {seconds} s in vain for {what}: {answer!r}")
        time.sleep(pause)
    raise AssertionError("pauses have no end")


async def until(
    question: Callable[[], object], what: str, seconds: float = PATIENCE_SECONDS
) -> None:
    """The same between turns of an event loop; the question may be a coroutine."""
    turns = asyncio.get_running_loop()
    deadline = turns.time() + seconds
    for pause in pauses():
        answer = question()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return
        if turns.time() > deadline:
            raise InVain(f"waited {seconds} s in vain for {what}: {answer!r}")
        await asyncio.sleep(pause)
