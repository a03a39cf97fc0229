"""Where the path is, asked a thousand times a second while calls go over connections in memory.

    python -m benchmarks.path.samples CALLS      JSON: scenario -> part -> CPU microseconds of a call

A sample is taken when the interpreter next looks for signals, which is at calls and jumps back, so
C code counts for the line that called it. The share of samples in a part, of the process's CPU
time, is the part's time; what the wire itself takes is a part, too, which is left out.
"""

import gc
import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from benchmarks.guard.gateway import gateway
from benchmarks.guard.runs import new_loop, serve
from benchmarks.guard.still_loop import StillLoop
from benchmarks.path.parts import HARNESS, part_of
from benchmarks.safety.runs import SHOWN, WARM_CALLS

EVERY_SECONDS: Final = 0.001


@contextmanager
def sampling() -> Iterator[Counter[str]]:
    """Part -> samples. Of the wall's time: while others run on this core, one at most waits."""
    found: Counter[str] = Counter()

    def look(number: int, frame: FrameType | None) -> None:
        found[part_of(frame)] += 1

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, EVERY_SECONDS, EVERY_SECONDS)
    try:
        yield found
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


async def sampled(loop: StillLoop, calls: int) -> dict[str, dict[str, float]]:
    times = {}
    async with gateway(loop) as client:
        for scenario in SHOWN:
            await serve(client, scenario, WARM_CALLS)
            gc.collect()
            gc.freeze()
            began = time.process_time()
            with sampling() as samples:
                await serve(client, scenario, calls)
            of_call = (time.process_time() - began) * 1e6 / calls
            whole = samples.total() or 1
            times[scenario.name] = {
                part: of_call * count / whole for part, count in samples.items() if part != HARNESS
            }
    return times


def main() -> None:
    # Where nothing else decides, engines are drawn.
    random.seed(0)
    loop = new_loop()
    print(json.dumps(loop.run_until_complete(sampled(loop, int(sys.argv[1])))))


if __name__ == "__main__":
    main()
