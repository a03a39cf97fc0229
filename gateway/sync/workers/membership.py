"""Membership: the workers of a gateway in the folder that they share, one file each of a kind.

    <folder>/<process id>-<random>.<kind>    locked by its worker for as long as that lives

The kernel ends the lock with the process, however it ends. A kind is memory (folder.py), a page of
metrics (metrics.py), or a socket (gateway/console/siblings.py), where listening stands for the lock.
"""

import fcntl
import os
from pathlib import Path
from typing import BinaryIO


def own_path(folder: Path, kind: str) -> Path:
    """Path of a file that no other worker has, nor one that takes this one's place."""
    return folder / f"{os.getpid()}-{os.urandom(4).hex()}.{kind}"


def other_paths(own: Path) -> list[Path]:
    """The files of that kind of all other workers, also of those that have ended."""
    return [path for path in own.parent.glob(f"*{own.suffix}") if path != own]


def lock(file: BinaryIO) -> None:
    """Lock a file until it is closed, or the process ends in whatever way."""
    fcntl.flock(file, fcntl.LOCK_EX)


def lock_at_once(file: BinaryIO) -> bool:
    """Lock a file in the same way; False if it is locked."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(file: BinaryIO) -> bool:
    """Shared locks do not exclude each other, so that two who ask at once both see it."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
