"""Prefix cache: blocks that already hold the KV of a prompt's beginning.

A full block is known by the hash of its tokens and of the hash before it, so equal
hashes mean equal text from the very start:

    hash[i] = blake2b(hash[i - 1], tokens of block i)

hash[-1] is made of a seed. Engines of different seeds name equal blocks differently, as vLLM's
do with different values of PYTHONHASHSEED.
"""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from pdgate.engine.cache.allocator import Allocator
from pdgate.engine.kv_events.journal import EventJournal

HASH_BYTES = 16


def root_of(seed: str) -> bytes:
    return blake2b(seed.encode(), digest_size=HASH_BYTES).digest() if seed else b""


def extend(
    hashes: list[bytes], tokens: Sequence[int], block_tokens: int, blocks: int, root: bytes = b""
) -> None:
    """Makes `hashes` cover the first `blocks` blocks of the tokens."""
    for index in range(len(hashes), blocks):
        block = tokens[index * block_tokens : (index + 1) * block_tokens]
        before = hashes[-1] if hashes else root
        data = before + np.asarray(block, "<i4").tobytes()
        hashes.append(blake2b(data, digest_size=HASH_BYTES).digest())


class BlockPool:
    """An allocator that remembers which full blocks hold what, and says so in a journal."""

    def __init__(
        self,
        total: int,
        block_tokens: int,
        reuse: bool = True,
        journal: EventJournal | None = None,
        hash_seed: str = "",
    ) -> None:
        self.block_tokens = block_tokens
        self.root = root_of(hash_seed)
        self.allocator = Allocator(total, self._forget)
        self._reuse = reuse
        self._journal = journal
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}

    def borrow(self, hashes: Sequence[bytes]) -> list[int]:
        """Blocks for as many leading hashes as are known, each with one owner more."""
        found = []
        for known in hashes:
            block_id = self._block_of.get(known)
            if block_id is None:
                break
            found.append(block_id)
        self.allocator.share(found)
        return found

    def known_tokens(self, prompt: Sequence[int]) -> int:
        """How many of the prompt's leading tokens `borrow` would find, its last one left out."""
        hashes: list[bytes] = []
        most = (len(prompt) - 1) // self.block_tokens
        for blocks in range(1, most + 1):
            extend(hashes, prompt, self.block_tokens, blocks, self.root)
            if hashes[-1] not in self._block_of:
                return (blocks - 1) * self.block_tokens
        return most * self.block_tokens

    def publish(
        self, block_id: int, full: bytes, before: bytes | None, tokens: Sequence[int]
    ) -> None:
        """The block is full and its contents are `full`; the first of two equal ones stays.

        Args:
            before: The contents of the block that it follows; None at the beginning.
            tokens: What it holds the KV of.
        """
        if not self._reuse or full in self._block_of or block_id in self._hash_of:
            return
        self._block_of[full] = block_id
        self._hash_of[block_id] = full
        self.allocator.keep_contents(block_id)
        if self._journal is not None:
            self._journal.stored(before, full, tokens)

    def _forget(self, block_id: int) -> None:
        full = self._hash_of.pop(block_id)
        del self._block_of[full]
        if self._journal is not None:
            self._journal.removed(full)
