"""Translation of engines' token blocks into blocks of prompts, as the prefix index has them.

    an engine stored blocks     --> the index learns of the parts of prompts that lie in them
    removed, cleared            --> and that they are gone: from its pages, or from a tier beyond them (media.py)
    a prompt's tokens are known --> and which engines have how much of it already

The index also believes that an engine has what was routed to it. That is true a moment later; when
the engine removes it, the index hears of it here.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pdgate.gateway.kv_events.cached import MalformedEvent
from pdgate.gateway.kv_events.chain import keys, root
from pdgate.gateway.kv_events.events import Cleared, EventBatch, Removed, Stored
from pdgate.gateway.kv_events.links import EventLinks, PromptPart
from pdgate.gateway.kv_events.media import CachedByTier, tier_of, tiers_of
from pdgate.gateway.kv_events.prompts import IndexedPrompt
from pdgate.scheduling.prefix import PrefixIndex

MOST_EARLY: Final = 64
"""Prompts that wait until the first engine says how long its blocks are."""

MOST_SIZES: Final = 4
"""Different sizes of blocks, in one fleet."""

MOST_ADAPTERS: Final = 10_000


@dataclass(slots=True)
class SeenEventCounts:
    """
    Attributes:
        stored, removed: Blocks.
        cleared: Times that an engine emptied its cache.
        malformed: Events, or whole batches, that could not be read.
    """

    stored: int = 0
    removed: int = 0
    cleared: int = 0
    malformed: int = 0


class EventTranslation:
    """
    Attributes:
        links: Of the prompts whose tokens are known.
    """

    def __init__(self, index: PrefixIndex, links: EventLinks | None = None) -> None:
        self.links = links or EventLinks()
        self._index = index
        self._caches: dict[str, dict[int, CachedByTier]] = {}
        self._doubted: set[str] = set()
        self._sizes: dict[int, None] = {}
        self._adapters: set[str] = set()
        self._early: deque[IndexedPrompt] = deque(maxlen=MOST_EARLY)

    def cached(self, instance_id: str, rank: int) -> CachedByTier:
        """Cached blocks of one publisher, as far as it has said."""
        return self._caches.setdefault(instance_id, {}).setdefault(rank, CachedByTier())

    def take(self, instance_id: str, rank: int, batch: EventBatch, seen: SeenEventCounts) -> None:
        seen.malformed += batch.unknown
        cached = self.cached(instance_id, rank)
        for event in batch.events:
            match event:
                case Stored():
                    seen.stored += len(event.block_hashes)
                    try:
                        self._stored(instance_id, cached, event)
                    except MalformedEvent:
                        seen.malformed += 1
                case Removed():
                    seen.removed += len(event.block_hashes)
                    self._removed(instance_id, cached, event)
                case Cleared():
                    seen.cleared += 1
                    self.forget(instance_id, rank)

    def forget(self, instance_id: str, rank: int) -> None:
        """The publisher has nothing, or it is not known what."""
        self.cached(instance_id, rank).clear()
        self._index.cleared(instance_id)
        # What other ranks have is found again as prompts come.
        self.links.untie()

    def drop(self, instance_id: str) -> None:
        """Forget an engine whose events are heard no more."""
        self._doubted.discard(instance_id)
        if self._caches.pop(instance_id, None) is not None:
            self._index.cleared(instance_id)

    def doubt(self, instance_id: str) -> None:
        """The index believes nothing of it any more, and is to learn nothing of it from what was said before."""
        self._doubted.add(instance_id)

    def trust(self, instance_id: str) -> None:
        """What a doubted one said holds: it is found again as prompts come."""
        self._doubted.discard(instance_id)
        self.links.untie()

    def know_adapters(self, names: Iterable[str]) -> None:
        """Models that engines call adapters of others, and whose blocks they keep apart by these names."""
        for name in names:
            if name not in self._adapters:
                self._new_adapter(name)

    def learn(self, prompt: IndexedPrompt) -> None:
        """The tokens of a prompt are known."""
        if not self._sizes:
            self._early.append(prompt)
            return
        for size in self._sizes:
            whole = len(prompt.tokens) // size
            extras = prompt.extras(whole, self._adapters)
            try:
                found = list(keys(prompt.tokens, size, root(size), extras))
            except OverflowError:
                # Token ids as a client sent them: the engine will tell it what is wrong.
                return
            tied = self.links.tie(prompt.blocks, prompt.ends, found, size, prompt.model)
            for instance_id, caches in self._caches.items():
                if instance_id not in self._doubted:
                    self._believe(instance_id, caches, tied)

    def _believe(
        self,
        instance_id: str,
        caches: dict[int, CachedByTier],
        tied: Sequence[tuple[int, PromptPart]],
    ) -> None:
        """As much of the prompt as the instance has, in any of its ranks; and as much as it has with a tier."""
        for tier in ("", *tiers_of(caches.values())):
            deepest = None
            for key, part in tied:
                if not _anywhere(key, caches, (tier,)):
                    break
                deepest = part
            if deepest is not None:
                self._index.stored(instance_id, deepest.before, tier=tier)

    def _stored(self, instance_id: str, publisher: CachedByTier, event: Stored) -> None:
        tier = tier_of(event.medium)
        cached = publisher.at(tier)
        if event.lora_name is not None and event.lora_name not in self._adapters:
            self._new_adapter(event.lora_name)
        there = cached.stored(event)
        self._reached(instance_id, there, tier)
        if not tier:
            caches = self._caches[instance_id]
            for beyond in tiers_of(caches.values()):
                # What a tier has kept behind blocks that were gone can be read again.
                kept = [
                    key for key in there if any(key in one.at(beyond) for one in caches.values())
                ]
                self._reached(instance_id, kept, beyond)
        size = cached.block_tokens
        if size and size not in self._sizes and len(self._sizes) < MOST_SIZES:
            self._new_size(size)

    def _reached(self, instance_id: str, keys: Sequence[int], tier: str) -> None:
        """These blocks are there, in this order."""
        at = self.links.at
        # Prompt -> its first and its last part that ends in them.
        spans: dict[int, tuple[PromptPart, PromptPart]] = {}
        for key in keys:
            for part in at(key):
                prompt = id(part.blocks)
                spans[prompt] = (spans.get(prompt, (part,))[0], part)
        for first, last in spans.values():
            self._index.stored(instance_id, last.before, first.first, tier=tier)

    def _removed(self, instance_id: str, publisher: CachedByTier, event: Removed) -> None:
        caches = self._caches[instance_id]
        tier = tier_of(event.medium)
        # In a tier counts what lies behind blocks of the pages, too: it ends where neither has a block.
        ends = (tier,) if tier else ("", *tiers_of(caches.values()))
        at = self.links.at
        for key in publisher.at(tier).removed(event):
            parts = at(key)
            if not parts:
                continue
            for end in ends:
                if not _anywhere(key, caches, (end,)):
                    for part in parts:
                        self._index.lost(instance_id, part.blocks, part.first, tier=end)

    def _new_size(self, size: int) -> None:
        self._sizes[size] = None
        early = list(self._early)
        self._early.clear()
        for prompt in early:
            self.learn(prompt)

    def _new_adapter(self, name: str) -> None:
        if len(self._adapters) >= MOST_ADAPTERS:
            return
        self._adapters.add(name)
        # Prompts that were tied as if it were a model were credited with what engines have of the one that it changes.
        for blocks in self.links.drop(name):
            for instance_id, caches in self._caches.items():
                for tier in ("", *tiers_of(caches.values())):
                    self._index.lost(instance_id, blocks, 0, tier=tier)


def _anywhere(key: int, caches: dict[int, CachedByTier], tiers: Sequence[str]) -> bool:
    return any(one.has(key, tiers) for one in caches.values())
