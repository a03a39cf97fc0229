"""Shared store of KV blocks: a folder that all engines of a host, or of a file system, have in common.

    <folder>/<name>    magic "PDST" | SHA-256 of the pages | pages

A file appears whole, by renaming, and one that is not whole is none. The oldest go when there are too many bytes.
"""

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Final

from pdgate.engine.hand_over.blocks import NamedBlocks

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


class BlockStore:
    def __init__(self, folder: Path, blocks: NamedBlocks) -> None:
        self._folder = folder
        self._blocks = blocks

    def has(self, name: str) -> bool:
        return (self._folder / name).is_file()

    def put(self, name: str, block_id: int) -> int:
        """Returns how many bytes were written; 0 if it is there. Raises OSError."""
        if self.has(name):
            return 0
        pages = self._blocks.read(block_id)
        with tempfile.NamedTemporaryFile(dir=self._folder, prefix=".", delete=False) as file:
            file.write(MAGIC + hashlib.sha256(pages).digest() + pages)
        os.replace(file.name, self._folder / name)
        return len(pages)

    def get(self, name: str, block_id: int) -> int:
        """Fill a block with what is stored. Returns its bytes. Raises OSError, ValueError for a file that is none."""
        data = memoryview((self._folder / name).read_bytes())
        pages = data[_HEAD:]
        if data[:_HEAD] != MAGIC + hashlib.sha256(pages).digest():
            raise ValueError(f"{name} is no block of this store")
        self._blocks.write(block_id, pages)
        return len(pages)

    def make_room(self) -> None:
        """Remove the oldest while there are too many bytes; others may do so at the same time."""
        found = []
        for entry in os.scandir(self._folder):
            try:
                stat = entry.stat()
            except FileNotFoundError:
                continue
            found.append((stat.st_mtime, stat.st_size, entry.path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= MOST_BYTES:
                break
            Path(path).unlink(missing_ok=True)
            total -= size
