"""Time as a thread has it: the machine's other work is not a part of it."""

from pathlib import Path
from time import perf_counter
from typing import Final

_SCHEDSTAT: Final = Path("/proc/thread-self/schedstat")
"""Source: Linux, Documentation/scheduler/sched-stats.rst, "/proc/<pid>/schedstat"."""


def own_seconds() -> float:
    """Of a clock that stands while this thread is ready and has no core, and goes on while it waits
    for anything else."""
    delayed = int(_SCHEDSTAT.read_bytes().split()[1])
    return perf_counter() - delayed / 1e9
