"""Processes that run before all others, for as long as they are measured.

On a machine with other work what is measured is else that work too: how often the gateway loses
its core and its caches, and how long a call waits for one. Round robin (SCHED_RR), so that what
shares a core takes turns. It takes root, or CAP_SYS_NICE.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def first(pids: Sequence[int]) -> Iterator[None]:
    """Also what they start meanwhile. Raises PermissionError."""
    try:
        _set_all(pids, os.SCHED_RR, 1)
        yield
    finally:
        _set_all(pids, os.SCHED_OTHER, 0)


def allowed() -> bool:
    try:
        with first([os.getpid()]):
            return True
    except PermissionError:
        return False


def _set_all(pids: Sequence[int], policy: int, priority: int) -> None:
    for pid in pids:
        try:
            threads = [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]
        except FileNotFoundError:
            continue  # It has ended; whoever measures it finds that out.
        for thread in threads:
            try:
                os.sched_setscheduler(thread, policy, os.sched_param(priority))
            except ProcessLookupError:
                continue  # A thread that has ended since.
