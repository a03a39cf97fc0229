"""A process that does nothing for a while, as if its machine hung."""

import os
import signal
import time
from pathlib import Path


def freeze(pid: int) -> None:
    """Returns when none of its threads does anything any more."""
    os.kill(pid, signal.SIGSTOP)
    # No event tells of a process that is not our child.
    while any(_state(thread) not in "TZ" for thread in Path(f"/proc/{pid}/task").iterdir()):
        time.sleep(0.001)


def thaw(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)


def _state(thread: Path) -> str:
    """Source: proc_pid_stat(5); the name before it may hold anything, also brackets."""
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        # It has ended since it was listed.
        return "Z"
