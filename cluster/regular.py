"""Files of settings, keys and states, read without waiting for what is no file.

A fifo would keep the reader waiting until another process writes, a device for ever, and a file without
end fills the memory. Links are followed, as Kubernetes mounts secrets behind some.
"""

import errno
import os
import stat
from pathlib import Path
from typing import Final

MOST_BYTES: Final = 16 << 20


def read(path: str | Path, most_bytes: int = MOST_BYTES) -> bytes:
    """All of it. Raises OSError, with a reason for people in `strerror`."""
    check(path)
    # Not blocking, as what was a file a moment ago may be a fifo now.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        _check(os.fstat(file.fileno()).st_mode, path)
        found = file.read(most_bytes + 1)
    if len(found) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes", str(path))
    return found


def check(path: str | Path) -> None:
    """Raises OSError for what is no regular file, for libraries that open files by name."""
    _check(os.stat(path).st_mode, path)


def _check(mode: int, path: str | Path) -> None:
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
