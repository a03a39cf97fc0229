"""Media of KV events: which of an engine's memories a block is in, and what it has in those beyond its pages.

    GPU, or nothing     the pages that it computes in, whatever the device
    CPU                 the host's memory
    anything else       disks, and what lies further away

Engines that offload name the blocks by the hashes that their pages had (vLLM's OffloadingConnector: without tokens,
parent or size), or tell of them as of pages (ours). So a block is known in a tier if its event is whole, or if the pages
had it when it came there.

Source: vLLM, vllm/distributed/kv_events.py (MEDIUM_GPU); take_events of
vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from pdgate.gateway.kv_events.cached import Cached
from pdgate.scheduling.prefix.tiers import DISK, HOST

PAGES: Final = frozenset({"GPU", "NPU", "TPU", "XPU", "HPU"})
"""What engines call the memory that they compute in; vLLM says GPU on CPUs too."""


def tier_of(medium: str | None) -> str:
    """A tier of the prefix index; empty for an engine's pages."""
    if medium is None or medium.upper() in PAGES:
        return ""
    return HOST if medium.upper() == "CPU" else DISK


class CachedByTier:
    """Cached blocks of one publisher.

    Attributes:
        pages: What it computes in.
        beyond: Tier -> what is there, of those that it has spoken of.
    """

    def __init__(self) -> None:
        self.pages = Cached()
        self.beyond: dict[str, Cached] = {}

    def at(self, tier: str) -> Cached:
        if not tier:
            return self.pages
        found = self.beyond.get(tier)
        if found is None:
            found = self.beyond[tier] = Cached(knows=self.pages)
        return found

    def has(self, key: int, tiers: Collection[str]) -> bool:
        """Whether a block is in its pages, or in one of these tiers."""
        return key in self.pages or any(
            key in cached for tier, cached in self.beyond.items() if tier in tiers
        )

    def clear(self) -> None:
        self.pages.clear()
        for cached in self.beyond.values():
            cached.clear()


def tiers_of(publishers: Iterable[CachedByTier]) -> Mapping[str, None]:
    """Those that any of them has spoken of."""
    return dict.fromkeys(tier for one in publishers for tier in one.beyond)
