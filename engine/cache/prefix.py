"""Prefix cache: blocks that already hold the KV of a prompt's beginning.

A full block is known by the hash of its tokens and of the hash before it, so equal
hashes mean equal text from the very start:

    hash[i] = blake2b(hash[i - 1], tokens of block i)

hash[-1] is made of a seed, and of the salt of a call. Engines of different seeds name equal blocks differently, as vLLM's
do with different values of PYTHONHASHSEED.
"""

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from pdgate.engine.cache.allocator import Allocator, OutOfBlocks
from pdgate.engine.cache.tiers import Tiers
from pdgate.engine.kv_events.journal import EventJournal

HASH_BYTES = 16


def root_of(seed: str) -> bytes:
    return blake2b(seed.encode(), digest_size=HASH_BYTES).digest() if seed else b""


def salt_of(body: Mapping[str, Any]) -> str:
    """The cache_salt of a request; empty for none. Raises ValueError for what is none, as vLLM does."""
    salt = body.get("cache_salt")
    if salt is None:
        return ""
    if not isinstance(salt, str) or not salt:
        raise ValueError("cache_salt must be a string that is not empty")
    return salt


def salted(root: bytes, salt: str) -> bytes:
    """Calls of different salts (cache_salt) share no block, and one without a salt none with them."""
    if not salt:
        return root
    data = root + salt.encode(errors="surrogatepass")
    # A hash of another kind than a block's, so that no salt makes one.
    return blake2b(data, digest_size=HASH_BYTES, person=b"salt").digest()


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
        tiers: Tiers | None = None,
    ) -> None:
        self.block_tokens = block_tokens
        self.root = root_of(hash_seed)
        self.allocator = Allocator(total, self._forget)
        self._reuse = reuse
        self._journal = journal
        self._tiers = tiers
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}

    def borrow(
        self, hashes: Sequence[bytes], tokens: Sequence[int] = (), salt: str = ""
    ) -> list[int]:
        """Blocks for as many leading hashes as are known, each with one owner more.

        `tokens`: what the hashes are of; with it, what only a tier has is brought here.
        """
        found = []
        for known in hashes:
            block_id = self._block_of.get(known)
            if block_id is None:
                break
            found.append(block_id)
        self.allocator.share(found)
        if self._tiers is not None and tokens:
            self._bring(hashes, tokens, salt, found)
        return found

    def _bring(
        self, hashes: Sequence[bytes], tokens: Sequence[int], salt: str, found: list[int]
    ) -> None:
        """Go on with blocks that a tier has, and with those that are known behind these."""
        assert self._tiers is not None
        size = self.block_tokens
        for index in range(len(found), len(hashes)):
            full = hashes[index]
            block_id = self._block_of.get(full)
            if block_id is not None:
                self.allocator.share([block_id])
                found.append(block_id)
                continue
            try:
                (block_id,) = self.allocator.take(1, found[-1] if found else None)
            except OutOfBlocks:
                return
            if not self._tiers.get(full, block_id):
                self.allocator.drop([block_id])
                return
            held = tokens[index * size : (index + 1) * size]
            self.publish(block_id, full, hashes[index - 1] if index else None, held, salt)
            found.append(block_id)

    def known_tokens(self, prompt: Sequence[int], salt: str = "") -> int:
        """How many of the prompt's leading tokens `borrow` would find, its last one left out."""
        hashes: list[bytes] = []
        root = salted(self.root, salt)
        most = (len(prompt) - 1) // self.block_tokens
        for blocks in range(1, most + 1):
            extend(hashes, prompt, self.block_tokens, blocks, root)
            if hashes[-1] not in self._block_of and not self._in_a_tier(hashes[-1]):
                return (blocks - 1) * self.block_tokens
        return most * self.block_tokens

    def fetch(self, prompt: Sequence[int], salt: str, then: Callable[[], object]) -> bool:
        """Have other hosts asked for what `borrow` would not find. As of `Tiers.fetch`."""
        if self._tiers is None or self._tiers.peers is None:
            return False
        hashes: list[bytes] = []
        most = (len(prompt) - 1) // self.block_tokens
        extend(hashes, prompt, self.block_tokens, most, salted(self.root, salt))
        missing = [one for one in hashes if one not in self._block_of and not self._in_a_tier(one)]
        return self._tiers.fetch(missing, then)

    def _in_a_tier(self, full: bytes) -> bool:
        return self._tiers is not None and self._tiers.has(full)

    def publish(
        self,
        block_id: int,
        full: bytes,
        before: bytes | None,
        tokens: Sequence[int],
        salt: str = "",
    ) -> None:
        """The block is full and its contents are `full`; the first of two equal ones stays.

        Args:
            before: The contents of the block that it follows; None at the beginning.
            tokens: What it holds the KV of.
            salt: Of the call, which is a part of the first block's name.
        """
        if not self._reuse or full in self._block_of or block_id in self._hash_of:
            return
        self._block_of[full] = block_id
        self._hash_of[block_id] = full
        self.allocator.keep_contents(block_id)
        if self._journal is not None:
            self._journal.stored(before, full, tokens, salt)
        if self._tiers is not None:
            self._tiers.put(full, block_id, before, tokens, salt)

    def forget_all(self) -> None:
        """No prompt begins with anything that is known."""
        self.allocator.forget_all()

    def _forget(self, block_id: int) -> None:
        full = self._hash_of.pop(block_id)
        del self._block_of[full]
        if self._journal is not None:
            self._journal.removed(full)
