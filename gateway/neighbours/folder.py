"""Memory of all workers that live: one file each of a kind, in a folder that they share.

    <folder>/<worker>.<kind>    locked by its worker for as long as that lives

The kernel ends the lock with the process, however it ends. So who died counts no more at the next
look of any other, which also removes its file; and who comes in its place has another file.
"""

import fcntl
import os
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import BinaryIO


class Folder:
    """
    Attributes:
        memory: Ours, which we alone write; all zeros at first.
    """

    def __init__(self, folder: Path, kind: str, size: int) -> None:
        """`size`: of each one's memory, bytes. Raises OSError if there is no room for ours."""
        self._folder = folder
        self._kind = kind
        self._size = size
        self._path = folder / f"{os.getpid()}-{os.urandom(4).hex()}.{kind}"
        self._others: dict[str, _Other] = {}
        # Nobody may see it before it is whole, and locked: it would be taken for a dead one's.
        unfinished = self._path.with_suffix(".new")
        self._file = unfinished.open("w+b")
        # Not sparse: a page that is missing later would end the process (SIGBUS).
        os.posix_fallocate(self._file.fileno(), 0, size)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        unfinished.rename(self._path)
        self.memory = memoryview(mmap(self._file.fileno(), size))

    def others(self) -> dict[str, memoryview]:
        """Name -> the memory of each other worker that lives now."""
        found = self._folder.glob(f"*.{self._kind}")
        names = {path.name: path for path in found if path != self._path}
        for name in self._others.keys() - names.keys():
            self._others.pop(name).close()
        for name, path in names.items():
            if name not in self._others:
                try:
                    self._others[name] = _Other(path, self._size)
                except FileNotFoundError:
                    # It has ended just now.
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
        self._file: BinaryIO = path.open("rb")
        self.memory = memoryview(mmap(self._file.fileno(), size, access=ACCESS_READ))

    def lives(self) -> bool:
        """Shared locks do not exclude each other, so that two who ask at once both learn it."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False

    def close(self) -> None:
        self._file.close()
