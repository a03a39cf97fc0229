"""One process in which all contenders serve every scenario, one after another.

    python -m benchmarks.guard.runs mark     marks around WINDOWS of each run (`callgrind.py`)
    python -m benchmarks.guard.runs trace    JSON of what each call did (`traced.py`)

Before a run all is warm: connections are open, and the interpreter has specialised its code.
"""

import gc
import json
import os
import random
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, Final

from benchmarks.guard.bare_wire import bare_wire
from benchmarks.guard.gateway import gateway
from benchmarks.guard.memory_wire import Client, Engines, WrongAnswer
from benchmarks.guard.relay import relay
from benchmarks.guard.scenarios import SCENARIOS, Answers, Scenario
from benchmarks.guard.still_loop import StillLoop
from benchmarks.guard.traced import Trace

CONTENDERS: Final[Mapping[str, Callable[[StillLoop], AbstractAsyncContextManager[Client]]]] = {
    "gateway": gateway,
    "relay": relay,
    "wire": bare_wire,
}
Json = dict[str, Any]

RUNS: Final = [(name, scenario.name) for name in CONTENDERS for scenario in SCENARIOS]
"""In their order."""

WARM_CALLS = 32
CALLS = 30
WINDOWS = 3
"""Of CALLS each. The least counts: once in a while the allocator takes and gives back an arena
with every piece (seen: a fifth more), which depends on what happens to lie in memory."""

TRACED_CALLS = 4


async def serve(client: Client, scenario: Scenario, calls: int) -> None:
    """Raises WrongAnswer. Only the first is read; the others must be as long."""
    first = await client.ask(scenario.request, scenario.end)
    scenario.check(first)
    for _ in range(calls - 1):
        answer = await client.ask(scenario.request, scenario.end)
        if len(answer) != len(first):
            raise WrongAnswer(repr(answer))


def mark() -> None:
    """A call into libc that nothing else makes, for callgrind to cut its profile at."""
    os.getloadavg()


async def marked(loop: StillLoop) -> None:
    in_the_way = []
    for contender in CONTENDERS.values():
        async with contender(loop) as client:
            for scenario in SCENARIOS:
                await serve(client, scenario, WARM_CALLS)
                for window in range(WINDOWS):
                    # Another place in memory for each window.
                    in_the_way.append([bytes(100 * window + size) for size in range(400)])
                    # What was there before is not looked through for garbage in the run.
                    gc.collect()
                    gc.freeze()
                    mark()
                    await serve(client, scenario, CALLS)
                    mark()


async def traced(loop: StillLoop, warm_calls: int = WARM_CALLS) -> Json:
    """Scenario -> what all of its TRACED_CALLS did in the gateway."""
    found: Json = {}
    async with gateway(loop) as client:
        for scenario in SCENARIOS:
            await serve(client, scenario, warm_calls)
            before, trace = replace(loop.operations), Trace()
            with trace.on():
                await serve(client, scenario, TRACED_CALLS)
            found[scenario.name] = {
                "operations": loop.operations.since(before),
                "entered": trace.entered,
                "bytecodes": trace.bytecodes,
            }
    return found


def new_loop() -> StillLoop:
    engines = Engines(Answers())
    # It lacks most of a loop on purpose.
    loop = engines.loop = StillLoop(engines)  # type: ignore[abstract]
    return loop


def main() -> None:
    # Where nothing else decides, engines are drawn.
    random.seed(0)
    loop = new_loop()
    match sys.argv[1:]:
        case ["mark"]:
            loop.run_until_complete(marked(loop))
        case ["trace"]:
            print(json.dumps(loop.run_until_complete(traced(loop))))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
