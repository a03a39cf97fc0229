"""Shared store of KV blocks: a folder that all engines of a host, or of a file system, have in common.

    <folder>/<name>    magic "PDST" | SHA-256 of the pages | pages

A file appears whole, by renaming, and one that is not whole is none. Those that were not used for longest go when there are too
many bytes.
"""

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Final

MAGIC: Final = b"PDST"
MOST_BYTES: Final = 256 << 20
_HEAD: Final = len(MAGIC) + hashlib.sha256().digest_size


def folder_of(named: str) -> Path:
    """The folder, made if it is not there. Raises ValueError for one that is another user's."""
    path = Path(named or Path(tempfile.gettempdir(), f"pdgate-kv-store-{os.getuid()}"))
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_uid != os.getuid():
        raise ValueError(f"the KV store {path} is another user's")
    return path


class SharedStore:
    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self._folder = folder
        self._most_bytes = most_bytes

    def has(self, name: str) -> bool:
        return (self._folder / name).is_file()

    def put(self, name: str, pages: bytes) -> int:
        """Returns how many bytes were written; 0 if it is there. Raises OSError."""
        if self.has(name):
            return 0
        file = tempfile.NamedTemporaryFile(dir=self._folder, prefix=".", delete=False)  # noqa: SIM115
        try:
            with file:
                file.write(MAGIC + hashlib.sha256(pages).digest() + pages)
            os.replace(file.name, self._folder / name)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
        return len(pages)

    def get(self, name: str) -> memoryview:
        """The pages, which count as used now. Raises OSError, ValueError for a file that is none."""
        path = self._folder / name
        data = memoryview(path.read_bytes())
        pages = data[_HEAD:]
        if data[:_HEAD] != MAGIC + hashlib.sha256(pages).digest():
            raise ValueError(f"{name} is no block of this store")
        # Another engine may have made room; what was read is whole.
        with contextlib.suppress(FileNotFoundError):
            os.utime(path)
        return pages

    def remove(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)

    def make_room(self) -> None:
        """Remove what was not used for longest while there are too many bytes; others may do so at the same time."""
        found = []
        for entry in os.scandir(self._folder):
            try:
                stat = entry.stat()
            except FileNotFoundError:
                continue
            found.append((stat.st_mtime_ns, stat.st_size, entry.path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self._most_bytes:
                break
            Path(path).unlink(missing_ok=True)
            total -= size
