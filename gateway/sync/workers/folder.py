"""Memory of all workers that live: one file each of a kind, in a folder that they share.

    <folder>/<worker>.<kind>    locked by its worker for as long as that lives

A worker that died counts no more at the next look of any other, which also removes its file; the
one that comes in its place has another file.
"""

import os
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import BinaryIO

from pdgate.gateway.sync.workers.membership import is_locked, lock, other_paths, own_path


class Folder:
    """
    Attributes:
        memory: Ours, which we alone write; all zeros at first.
    """

    def __init__(self, folder: Path, kind: str, size: int) -> None:
        """`size`: of each one's memory, bytes. Raises OSError if there is no room for ours."""
        self._size = size
        self._path = own_path(folder, kind)
        self._others: dict[str, _Other] = {}
        # It must not be seen before it is whole, and locked: it would be taken for a dead one's.
        unfinished = self._path.with_suffix(".new")
        self._file = unfinished.open("w+b")
        # Not sparse: a page that is missing later would end the process (SIGBUS).
        os.posix_fallocate(self._file.fileno(), 0, size)
        lock(self._file)
        unfinished.rename(self._path)
        self.memory = memoryview(mmap(self._file.fileno(), size))

    def others(self) -> dict[str, memoryview]:
        """Name -> the memory of each other worker that lives now."""
        names = {path.name: path for path in other_paths(self._path)}
        for name in self._others.keys() - names.keys():
            self._others.pop(name).close()
        for name, path in names.items():
            if name not in self._others:
                try:
                    self._others[name] = _Other(path, self._size)
                except (OSError, ValueError):
                    # It has ended just now, or is no worker's: shorter, a fifo, a link.
                    continue
            if not self._others[name].lives():
                self._others.pop(name).close()
                path.unlink(missing_ok=True)
        return {name: other.memory for name, other in self._others.items()}

    def close(self) -> None:
        """This worker has nothing in flight any more."""
        self._path.unlink(missing_ok=True)
        self._file.close()
        for other in self._others.values():
            other.close()
        self._others.clear()


class _Other:
    def __init__(self, path: Path, size: int) -> None:
        """Raises OSError, ValueError."""
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        self._file: BinaryIO = os.fdopen(opened, "rb")
        try:
            self.memory = memoryview(mmap(opened, size, access=ACCESS_READ))
        except (OSError, ValueError):
            self._file.close()
            raise

    def lives(self) -> bool:
        return is_locked(self._file)

    def close(self) -> None:
        self._file.close()
