"""The place of the tables of one gateway's workers: a folder in memory, for as long as it runs.

Not on a disk, where a writer may have to wait, now and then, until a page has been written.
The parent keeps the folder locked. What a parent that was killed has left, the next one removes:
it is memory that would not be given back.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from tempfile import gettempdir, mkdtemp
from typing import Final

MEMORY: Final = Path("/dev/shm")
PREFIX: Final = "pdgate-load-"


@contextmanager
def shared_folder(where: Path | None = None) -> Iterator[Path]:
    """A new one. `where`: in memory, or, on systems without, with other temporary files."""
    if where is None:
        where = MEMORY if os.access(MEMORY, os.W_OK | os.X_OK) else Path(gettempdir())
    for left in where.glob(f"{PREFIX}*"):
        # Another user's is not ours to remove, and it may go while we look.
        with suppress(OSError), _locked(left):
            rmtree(left)
    unlocked = Path(mkdtemp(prefix="pdgate-", dir=where))
    with _locked(unlocked):
        # Only now may others find it.
        folder = unlocked.rename(where / f"{PREFIX}{unlocked.name}")
        try:
            yield folder
        finally:
            rmtree(folder)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Raises BlockingIOError while another process has locked it, OSError for what is no folder of ours.

    Any user may put something of that name into a folder that all share: a fifo, a link, another's folder.
    """
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if os.fstat(opened).st_uid != os.geteuid():
            raise PermissionError(f"{folder} is another user's")
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(opened)
