"""Metrics of the hand-over, on their way from the worker to the API server.

worker: Totals, ever growing -- difference since the last step --> API server: counters
        held blocks, now     -- as it is -------------------------> gauge
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

PREFIX: Final = "vllm:pdgate_"

COUNTERS: Final[Mapping[str, str]] = {
    "bytes": "KV bytes that this engine has taken from others",
    "transfers": "Loads that ended well",
    "seconds": "Seconds that requests waited for their loads, all added up",
    "failed": "Loads that failed or were cancelled",
    "expired": "Prompts whose blocks were held, and that no decode engine fetched in time",
    "peers_refused": "Peers that did not prove who they are",
}
GAUGES: Final[Mapping[str, str]] = {
    "held_blocks": "KV blocks of finished requests that wait for a reader or a lease's end",
    "stranded_blocks": "KV blocks of failed loads in which a silent peer may still write",
}

Numbers = dict[str, float]


@dataclass(frozen=True, slots=True)
class Totals:
    bytes: float = 0
    transfers: float = 0
    seconds: float = 0
    failed: float = 0
    expired: float = 0
    peers_refused: float = 0
    held_blocks: float = 0
    stranded_blocks: float = 0


class Growth:
    """What is new since the last look."""

    def __init__(self) -> None:
        self._last = Totals()

    def since(self, totals: Totals) -> Numbers | None:
        """None if nothing has changed, which is what most steps say."""
        if totals == self._last:
            return None
        before, now = asdict(self._last), asdict(totals)
        self._last = totals
        return {name: now[name] - before[name] for name in COUNTERS} | {
            name: now[name] for name in GAUGES
        }


def merged(first: Mapping[str, float], second: Mapping[str, float]) -> Numbers:
    """Of one engine, in the order in which they were taken."""
    counters = {name: first.get(name, 0) + second.get(name, 0) for name in COUNTERS}
    return counters | {name: second.get(name, first.get(name, 0)) for name in GAUGES}
