"""Files of settings, keys and states: read without waiting for what is no file, and replaced at once.

A fifo would keep the reader waiting until another process writes, a device for ever, and a file without
end fills the memory. Links are followed, as Kubernetes mounts secrets behind some; never by a writer.
"""

import errno
import os
import stat
from contextlib import suppress
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


def replace(path: Path, data: bytes) -> None:
    """Write a file that is readable for us alone: its readers find all of the old one or of the new. Raises OSError.

    Of one process, one thread at a time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Several processes may write at once, each its own.
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    try:
        # Never what is there already, which in a folder that others write may be a fifo or a link.
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        with suppress(OSError):
            beside.unlink()
        raise


def check(path: str | Path) -> None:
    """Raises OSError for what is no regular file, for libraries that open files by name."""
    _check(os.stat(path).st_mode, path)


def _check(mode: int, path: str | Path) -> None:
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
