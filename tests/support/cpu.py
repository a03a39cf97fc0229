"""CPU time of this thread: what a busy machine does not make longer.

It is measured beside other programs all the same, which share caches and memory with us, and on other
machines. So it is the least of several runs; and where it is more than it may be, it counts as much less as
work that is known takes longer here and now than where the bounds were found (`slowness`). And what other tests have left is not looked through for garbage
meanwhile, as a gateway's own process does not look through what it began with (gateway/memory.py):
a body of 80,000 lists makes that happen several times, at 0.1 s for a million objects.
"""

import asyncio
import gc
import json
from collections.abc import Callable, Coroutine
from math import inf
from time import thread_time
from typing import Any, Final

import msgspec

CALLBACK_SECONDS = 0.05
"""The most that one callback of the event loop may use (docs/operations/security.md#time)."""
TRIES = 3
ROUNDS = 4
"""Of so many tries, while none has taken as little as it may: others may be at our caches for a while."""

KNOWN_SECONDS: Final = 0.0087
"""What `_known_work` takes where the bounds were found: Python 3.11, an AMD EPYC core at 2.6 GHz, idle."""
_LISTS: Final = b"[" + b"[]," * 20_000 + b"0]"
_NUMBERS: Final = b"[" + b"1," * 1_000_000 + b"0]"


def cpu_seconds(work: Callable[[], object]) -> float:
    """Of one call of `work`."""
    _keep_what_is_there()
    least = inf
    for _ in range(ROUNDS):
        least = min(least, _as_found(min(_of(work) for _ in range(TRIES))))
        if least <= CALLBACK_SECONDS:
            break
    return least


def _as_found(seconds: float) -> float:
    """As they would have been where the bounds were found, if they are more than they may be."""
    return seconds if seconds <= CALLBACK_SECONDS else seconds / slowness()


def slowness() -> float:
    """Of this machine, as it is just now, beside the one where the bounds were found; at least 1."""
    return max(1.0, min(_of(_known_work) for _ in range(TRIES)) / KNOWN_SECONDS)


def _known_work() -> None:
    """Reads JSON into lists and numbers, as what is measured mostly does."""
    json.loads(_LISTS)
    msgspec.json.decode(_NUMBERS)


def _keep_what_is_there() -> None:
    gc.collect()
    gc.freeze()


def _of(work: Callable[[], object]) -> float:
    before = thread_time()
    work()
    return thread_time() - before


async def longest_step(work: Callable[[], Coroutine[Any, Any, object]]) -> float:
    """Of the parts of a coroutine between which other callbacks have their turn."""
    _keep_what_is_there()
    least = inf
    for _ in range(ROUNDS):
        least = min(least, _as_found(min([await _longest(work()) for _ in range(TRIES)])))
        if least <= CALLBACK_SECONDS:
            break
    return least


async def _longest(work: Coroutine[Any, Any, object]) -> float:
    found: list[float] = []

    class Stepwise:
        def __await__(self) -> Any:
            steps = work.__await__()
            while True:
                before = thread_time()
                try:
                    waits = next(steps)
                except StopIteration as over:
                    return over.value
                finally:
                    found.append(thread_time() - before)
                yield waits

    async def whole() -> object:
        return await Stepwise()

    await asyncio.ensure_future(whole())
    return max(found)
