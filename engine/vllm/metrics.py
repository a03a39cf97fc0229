"""Metrics of the hand-over, on their way from the worker to the API server.

worker: Totals, ever growing -- difference since the last step --> API server: counters
        held blocks, now     -- as it is, with the worker's number -> gauge, of all workers

Of an engine of several workers each takes its share of a load. So bytes and peers are summed over
them, but a load is one: those are counted where the first worker is.
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

OF_EACH_WORKER: Final = ("bytes", "peers_refused")

Numbers = dict[str, float]
"""Gauges by "name@worker"."""


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
    """What is new since the last look, at one worker."""

    def __init__(self, worker: int = 0) -> None:
        self._worker = worker
        self._last = Totals()

    def since(self, totals: Totals) -> Numbers | None:
        """Return what has changed; None if nothing has, as after most steps."""
        if totals == self._last:
            return None
        before, now = asdict(self._last), asdict(totals)
        self._last = totals
        counted = COUNTERS if self._worker == 0 else OF_EACH_WORKER
        return {name: now[name] - before[name] for name in counted} | {
            f"{name}@{self._worker}": now[name] for name in GAUGES
        }


def merged(first: Mapping[str, float], second: Mapping[str, float]) -> Numbers:
    """Merge numbers of one engine, in the order in which they were taken."""
    counters = {name: first.get(name, 0) + second.get(name, 0) for name in COUNTERS}
    gauges = {name: value for name, value in (dict(first) | dict(second)).items() if "@" in name}
    return counters | gauges


class WorkerGauges:
    """The last that each worker has said."""

    def __init__(self) -> None:
        self._last: Numbers = {}

    def after(self, said: Mapping[str, float]) -> Numbers:
        """Sums over all workers, of what has been said at all."""
        self._last |= {name: value for name, value in said.items() if "@" in name}
        sums: Numbers = {}
        for name, value in self._last.items():
            gauge = name.partition("@")[0]
            sums[gauge] = sums.get(gauge, 0) + value
        return sums
