"""Shared store of KV blocks: a folder that all engines of a host, or of a file system, have in common.

    <folder>/<name>       magic "PDST" | SHA-256 of the pages | pages      name: 64 hexadecimal digits
    <folder>/.pdst-<...>  one that is being written, or whose writer was killed

A file appears whole, by renaming, and one that is not whole is none. Those that were not used for longest go when there are too
many bytes; what else lies in the folder stays. The checksum is no proof of who wrote, so the folder is its user's alone.
"""

import contextlib
import hashlib
import os
import re
import stat
import tempfile
from pathlib import Path
from typing import Final

MAGIC: Final = b"PDST"
MOST_BYTES: Final = 256 << 20
_HEAD: Final = len(MAGIC) + hashlib.sha256().digest_size
_UNFINISHED: Final = ".pdst-"
_OURS: Final = re.compile(rf"[0-9a-f]{{64}}|{re.escape(_UNFINISHED)}.*")


def folder_of(named: str) -> Path:
    """The folder, made if it is not there. Raises OSError; ValueError for one that others may enter."""
    path = Path(named or Path(tempfile.gettempdir(), f"pdgate-kv-store-{os.getuid()}"))
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise ValueError(f"the KV store {path} is a link: name the folder itself")
    if found.st_uid != os.getuid():
        raise ValueError(f"the KV store {path} is another user's")
    if found.st_mode & 0o077:
        raise ValueError(f"the KV store {path} is open to other users: it needs the mode 0700")
    return path


class BlockStore:
    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self._folder = folder
        self._most_bytes = most_bytes

    def has(self, name: str) -> bool:
        return (self._folder / name).is_file()

    def put(self, name: str, pages: bytes) -> int:
        """Returns how many bytes were written; 0 if it is there. Raises OSError."""
        if self.has(name):
            return 0
        file = tempfile.NamedTemporaryFile(dir=self._folder, prefix=_UNFINISHED, delete=False)  # noqa: SIM115
        try:
            with file:
                file.write(MAGIC + hashlib.sha256(pages).digest() + pages)
            os.replace(file.name, self._folder / name)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
        return len(pages)

    def get(self, name: str, size: int) -> memoryview:
        """The pages, `size` bytes, which count as used now. Raises OSError, ValueError for a file that is none."""
        path = self._folder / name
        # Whatever lies there is not followed, waited for, or read beyond its size.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_size != _HEAD + size:
                raise ValueError(f"{name} is no block of this store")
            with open(descriptor, "rb", closefd=False) as file:
                data = memoryview(file.read(_HEAD + size))
        finally:
            os.close(descriptor)
        pages = data[_HEAD:]
        if data[:_HEAD] != MAGIC + hashlib.sha256(pages).digest():
            raise ValueError(f"{name} is no block of this store")
        # Another engine may have made room, or the disk may be read only by now; what was read is whole.
        with contextlib.suppress(OSError):
            os.utime(path)
        return pages

    def names(self) -> set[str]:
        """Names of all that is there. Raise OSError."""
        return {entry.name for entry in os.scandir(self._folder)}

    def remove(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)

    def make_room(self) -> None:
        """Remove what was not used for longest while there are too many bytes; others may do so at the same time."""
        found = []
        for entry in os.scandir(self._folder):
            if _OURS.fullmatch(entry.name) is None:
                continue
            try:
                known = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(known.st_mode):
                found.append((known.st_mtime_ns, known.st_size, entry.path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self._most_bytes:
                break
            Path(path).unlink(missing_ok=True)
            total -= size
