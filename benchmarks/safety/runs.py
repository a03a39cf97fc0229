"""One contender in one process: a variant of the gateway, the bare relay, or the wire alone.

    python -m benchmarks.safety.runs mark NAME      marks around windows of calls (callgrind)
    python -m benchmarks.safety.runs time NAME      JSON: scenario -> CPU microseconds of a call

All is warm before a run: connections are open, and the interpreter has specialised its code.
"""

import gc
import json
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from benchmarks.guard.bare_wire import bare_wire
from benchmarks.guard.gateway import gateway
from benchmarks.guard.memory_wire import Client
from benchmarks.guard.relay import relay
from benchmarks.guard.runs import mark, new_loop, serve
from benchmarks.guard.scenarios import LONG, SCENARIOS, SHORT
from benchmarks.guard.still_loop import StillLoop
from benchmarks.safety.features import ALL, NAMES, NONE, variant

RELAY, WIRE = "relay", "wire"
CONTENDERS: Final = (ALL, *NAMES, NONE, RELAY, WIRE)

SHOWN: Final = tuple(
    one for one in SCENARIOS if one.name in ("whole_200", f"stream_{SHORT}", f"stream_{LONG}")
)
WARM_CALLS = 24
MARKED_CALLS = 12
WINDOWS = 2
"""The least counts: once in a while the allocator takes and gives back an arena with every piece."""

TIMED_CALLS = 100
TIMED_WINDOWS = 5


@asynccontextmanager
async def contender(name: str, loop: StillLoop) -> AsyncIterator[Client]:
    if name in (RELAY, WIRE):
        async with (relay if name == RELAY else bare_wire)(loop) as client:
            yield client
        return
    chosen = variant(name)
    with chosen.in_place():
        async with gateway(loop, chosen.settings, chosen.protocol) as client:
            yield client


async def marked(client: Client, calls: int = MARKED_CALLS) -> None:
    in_the_way = []
    for scenario in SHOWN:
        await serve(client, scenario, WARM_CALLS)
        for window in range(WINDOWS):
            # Another place in memory for each window.
            in_the_way.append([bytes(100 * window + size) for size in range(400)])
            _collect()
            mark()
            await serve(client, scenario, calls)
            mark()


async def timed(client: Client, calls: int = TIMED_CALLS) -> dict[str, float]:
    """CPU time of a call, the least of all windows: what others do makes none of them cheaper."""
    found = {}
    for scenario in SHOWN:
        await serve(client, scenario, WARM_CALLS)
        windows = []
        for _ in range(TIMED_WINDOWS):
            _collect()
            began = time.process_time_ns()
            await serve(client, scenario, calls)
            windows.append((time.process_time_ns() - began) / 1000 / calls)
        found[scenario.name] = min(windows)
    return found


def _collect() -> None:
    """What was there before is not looked through for garbage in the run."""
    gc.collect()
    gc.freeze()


async def _mark(name: str, loop: StillLoop) -> None:
    async with contender(name, loop) as client:
        await marked(client)


async def _time(name: str, loop: StillLoop) -> None:
    async with contender(name, loop) as client:
        print(json.dumps(await timed(client)))


def main() -> None:
    # Where nothing else decides, engines are drawn.
    random.seed(0)
    loop = new_loop()
    match sys.argv[1:]:
        case ["mark", name]:
            loop.run_until_complete(_mark(name, loop))
        case ["time", name]:
            loop.run_until_complete(_time(name, loop))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
