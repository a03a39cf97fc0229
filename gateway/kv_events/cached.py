"""Cached blocks of one publisher, by its own word.

    stored  [h7, h8] after h6       -> keys of h7 and h8, made of their tokens and h6's key
    removed [h8]                    -> its key, once no copy is left

An engine may hold a block several times, computed twice at once or in another memory; it says
stored and removed of every copy. A block whose parent we never heard of has no place, and is
counted as an orphan.

Several of an engine's hashes may stand for the same tokens: with a draft model that reads ahead, vLLM's hash of a
block covers the token behind it as well (`lookahead_token_ids`), so a b c d before e and before f are two blocks, with
one key here. The key is there as long as one of them is. Of a prompt that goes on otherwise the last block is then
believed to be there and is not: one block at most, as each block but the last is followed by the next one's tokens.

Source: vLLM 0.32.0, vllm/v1/core/block_pool.py: cache_full_blocks, BlockHashToBlockMap; hashes that read ahead: 0.33.0,
vllm/distributed/kv_events.py (BlockStored), and the proposal, vllm-project/vllm#50438.
"""

from collections.abc import Sequence
from typing import Final

from pdgate.gateway.kv_events.chain import keys, root
from pdgate.gateway.kv_events.events import EngineHash, Removed, Stored

MAX_BLOCKS: Final = 4_000_000
"""Of one publisher; more than any has memory for. Costs about 300 bytes each."""

WHOLE_PREFIX: Final = frozenset(
    {None, "full_attention", "mla_attention", "sink_full_attention", "unknown"}
)
"""Kinds of layers that need a prompt's KV from its beginning. The others keep a window only, so
what they drop says nothing of what has to be computed again."""


class MalformedEvent(Exception):
    """An event that says what cannot be."""


class Cached:
    """
    Attributes:
        block_tokens: Of a block as it was stored last; 0 before the first.
        orphans: Blocks that followed one that is not known.
        overflowed: Blocks that were too many.
    """

    def __init__(self, max_blocks: int = MAX_BLOCKS, knows: "Cached | None" = None) -> None:
        """`knows`: the pages of the same engine, whose blocks' names mean the same here."""
        self.block_tokens = 0
        self.orphans = 0
        self.overflowed = 0
        self._max_blocks = max_blocks
        self._knows = knows
        self._key_of: dict[EngineHash, int] = {}
        self._more_copies: dict[EngineHash, int] = {}
        self._keys: set[int] = set()
        self._more_names: dict[int, int] = {}
        self._passed_over: set[int] = set()

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: int) -> bool:
        return key in self._keys

    def stored(self, event: Stored) -> Sequence[int]:
        """Keys of the blocks, first to last, known or new. Raises MalformedEvent."""
        if event.kv_cache_spec_kind not in WHOLE_PREFIX:
            if event.group_idx is not None:
                self._passed_over.add(event.group_idx)
            return ()
        size, hashes = event.block_size, event.block_hashes
        if self._knows is not None and not event.token_ids:
            return self._named(hashes, self._knows)
        if size < 1 or len(event.token_ids) != size * len(hashes):
            raise MalformedEvent(f"{len(event.token_ids)} tokens in {len(hashes)} blocks of {size}")
        parent = root(size)
        if event.parent_block_hash is not None:
            known = self._key_of.get(event.parent_block_hash)
            if known is None and self._knows is not None:
                known = self._knows._key_of.get(event.parent_block_hash)
            if known is None:
                self.orphans += len(hashes)
                return ()
            parent = known
        if len(self._key_of) + len(hashes) > self._max_blocks:
            self.overflowed += len(hashes)
            return ()
        try:
            found = list(keys(event.token_ids, size, parent, event.extra_keys or ()))
        except OverflowError:
            raise MalformedEvent("a token id is negative, or has more than 32 bits") from None
        self.block_tokens = size
        self._add(hashes, found)
        return found

    def _named(self, hashes: Sequence[EngineHash], pages: "Cached") -> Sequence[int]:
        """Add blocks of which only the names came."""
        known = [(name, pages._key_of[name]) for name in hashes if name in pages._key_of]
        self.orphans += len(hashes) - len(known)
        if len(self._key_of) + len(known) > self._max_blocks:
            self.overflowed += len(known)
            return ()
        names, found = [name for name, _ in known], [key for _, key in known]
        self._add(names, found)
        return found

    def _add(self, hashes: Sequence[EngineHash], found: Sequence[int]) -> None:
        key_of, more_copies, there = self._key_of, self._more_copies, self._keys
        for name, key in zip(hashes, found, strict=True):
            if name in key_of:
                more_copies[name] = more_copies.get(name, 0) + 1
                continue
            key_of[name] = key
            if key in there:
                self._more_names[key] = self._more_names.get(key, 0) + 1
            else:
                there.add(key)

    def removed(self, event: Removed) -> Sequence[int]:
        """Keys of the blocks that are not there any more."""
        if event.group_idx in self._passed_over:
            return ()
        gone = []
        for name in event.block_hashes:
            copies = self._more_copies.get(name)
            if copies is not None:
                if copies > 1:
                    self._more_copies[name] = copies - 1
                else:
                    del self._more_copies[name]
                continue
            key = self._key_of.pop(name, None)
            if key is None:
                continue
            others = self._more_names.pop(key, 0)
            if others > 1:
                self._more_names[key] = others - 1
            elif not others:
                gone.append(key)
        self._keys.difference_update(gone)
        return gone

    def clear(self) -> None:
        self._key_of.clear()
        self._more_copies.clear()
        self._more_names.clear()
        self._keys.clear()
