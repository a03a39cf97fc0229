"""Blocks of a prompt by name, and their pages as bytes: for stores that know no requests.

A block's name is a hash of the model, the shape of its pages, the salt, and all tokens up to its end, so what is found
under it is the KV of that very prompt. The bytes are those of all shards, layer by layer.
"""

import hashlib
from collections.abc import Sequence

from pdgate.engine.layout import Layout


class NamedBlocks:
    def __init__(self, layout: Layout, model: str, shards: Sequence[memoryview]) -> None:
        self.layout = layout
        self._shards = shards
        shape = (layout.layers, layout.kv_heads, layout.block_tokens, layout.head_dim, layout.tp)
        self._begin = f"{model}\0{layout.dtype}\0{shape}\0".encode()

    def names(self, prompt: Sequence[int], salt: object) -> list[str]:
        """Names of the full blocks of a prompt; `salt` is what a client sent as cache_salt."""
        size = self.layout.block_tokens
        salted = salt.encode(errors="surrogatepass") if isinstance(salt, str) else b""
        hashed = hashlib.sha256(self._begin + salted + b"\0")
        names = []
        for end in range(size, len(prompt) + 1, size):
            hashed.update(repr(list(prompt[end - size : end])).encode())
            names.append(hashed.copy().hexdigest())
        return names

    def read(self, block_id: int) -> bytes:
        return b"".join(self._pages(block_id))

    def write(self, block_id: int, pages: memoryview) -> None:
        """Raises ValueError for bytes of another shape."""
        if len(pages) != self.layout.block_bytes:
            raise ValueError(f"a block has {self.layout.block_bytes} bytes, not {len(pages)}")
        size = self.layout.page_bytes
        for number, part in enumerate(self._pages(block_id)):
            part[:] = pages[number * size : (number + 1) * size]

    def _pages(self, block_id: int) -> list[memoryview]:
        size = self.layout.page_bytes
        starts = [self.layout.page_offset(layer, block_id) for layer in range(self.layout.layers)]
        return [shard[start : start + size] for shard in self._shards for start in starts]
