"""Tiers of KV beyond an engine's pages, and what a token from there costs.

A price is a share of what computing the token would take: 0 is as good as the pages, 1 as good as nothing.

Measured with the reference engine, a prompt of 2,992 tokens took 286 ms computed and 18.5 ms from the host's memory: 0.06
(docs/operations/kv-tiers.md). On GPUs it follows from bytes: a token of an 8B model is 128 KiB of KV and takes about 60 us
of an H100's prefill; over PCIe at 25 GB/s it comes in 5 us (0.09), from an NVMe of 6 GB/s in 22 us (0.36).
"""

from dataclasses import dataclass
from typing import Final

HOST: Final = "host"
DISK: Final = "disk"


@dataclass(frozen=True, slots=True)
class TierPrices:
    host: float = 0.1
    disk: float = 0.4

    def of(self, tier: str) -> float:
        return self.host if tier == HOST else self.disk


def worth(pages: int, tiers: list[tuple[float, int]]) -> int:
    """Tokens that an engine need not compute, of a prompt of which it has the first `pages` at once.

    `tiers`: price, and leading tokens that are there, from the cheapest on.
    """
    reach, found = pages, float(pages)
    for price, tokens in tiers:
        if tokens > reach:
            found += (1.0 - price) * (tokens - reach)
            reach = tokens
    return int(found)
