"""Shared store of KV blocks: a folder that all engines of a host, or of a file system, have in common.

    <folder>/<name>    magic "PDST" | SHA-256 of the pages | pages: shards, layers

A block's name is a hash of the model, the shape of its pages, the salt, and all tokens up to its end, so what is found
under it is the KV of that very prompt. A file appears whole, by renaming, and one that is not whole is none. The
oldest go when there are too many bytes.
"""

import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pdgate.engine.layout import Layout

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
    def __init__(
        self, folder: Path, layout: Layout, model: str, shards: Sequence[memoryview]
    ) -> None:
        self._folder = folder
        self._layout = layout
        self._shards = shards
        shape = (layout.layers, layout.kv_heads, layout.block_tokens, layout.head_dim, layout.tp)
        self._begin = f"{model}\0{layout.dtype}\0{shape}\0".encode()

    def names(self, prompt: Sequence[int], salt: str) -> list[str]:
        """Of the full blocks of a prompt."""
        size = self._layout.block_tokens
        hashed = hashlib.sha256(self._begin + salt.encode() + b"\0")
        names = []
        for end in range(size, len(prompt) + 1, size):
            hashed.update(repr(list(prompt[end - size : end])).encode())
            names.append(hashed.copy().hexdigest())
        return names

    def has(self, name: str) -> bool:
        return (self._folder / name).is_file()

    def put(self, name: str, block_id: int) -> int:
        """Returns how many bytes were written; 0 if it is there. Raises OSError."""
        if self.has(name):
            return 0
        pages = b"".join(part for part in self._pages(block_id))
        with tempfile.NamedTemporaryFile(dir=self._folder, prefix=".", delete=False) as file:
            file.write(MAGIC + hashlib.sha256(pages).digest() + pages)
        os.replace(file.name, self._folder / name)
        return len(pages)

    def get(self, name: str, block_id: int) -> int:
        """Fill a block with what is stored. Returns its bytes. Raises OSError, ValueError for a file that is none."""
        data = memoryview((self._folder / name).read_bytes())
        pages = data[_HEAD:]
        digest = hashlib.sha256(pages).digest()
        if data[:_HEAD] != MAGIC + digest or len(pages) != self._layout.block_bytes:
            raise ValueError(f"{name} is no block of this store")
        size, at = self._layout.page_bytes, 0
        for part in self._pages(block_id):
            part[:] = pages[at : at + size]
            at += size
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

    def _pages(self, block_id: int) -> list[memoryview]:
        size = self._layout.page_bytes
        starts = [self._layout.page_offset(layer, block_id) for layer in range(self._layout.layers)]
        return [shard[start : start + size] for shard in self._shards for start in starts]
