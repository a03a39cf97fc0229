"""Compute has a core of its own, as it has where there are more than two."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def apart(pids: list[int]) -> Iterator[None]:
    """This process on the first core that it may use, those on the others; all again afterwards.

    With a single core nobody is moved.
    """
    first, *others = cores = sorted(os.sched_getaffinity(0))
    if not others:
        yield
        return
    _confine(os.getpid(), {first})
    for pid in pids:
        _confine(pid, set(others))
    try:
        yield
    finally:
        _confine(os.getpid(), set(cores))


def _confine(pid: int, cores: set[int]) -> None:
    """All threads that it has; those to come do as the one that starts them."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), cores)
