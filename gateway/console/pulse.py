"""TTFT, ITL and calls of the last minutes, in slots of a few seconds.

Every SLOT_SECONDS the histograms of the call stats are looked at, and what they grew by is a slot:

    stats.collect() --> sums over all labels, bucket by bucket --> minus those of the last look

So it costs a call nothing, and the slots of several workers can be added: they are numbered by the
wall clock. Quantiles are read from buckets as Prometheus does it (histogram_quantile): in a bucket,
values are taken to be spread evenly.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf
from time import time
from typing import Any

import msgspec

from pdgate.gateway.metrics import families
from pdgate.gateway.metrics.family import MetricDeclaration, Samples

SLOT_SECONDS = 2
KEPT_SLOTS = 150
"""Five minutes."""

_SECONDS = (families.TTFT_SECONDS, families.FIRST_BYTE_SECONDS, families.ITL_SECONDS)

SHARES = (0.5, 0.95, 0.99)

Buckets = dict[str, float]
"""Upper bound, as it is written on /metrics -> how many were in that bucket."""


class PulseSlot(msgspec.Struct, frozen=True):
    """
    Attributes:
        number: Unix seconds, divided by SLOT_SECONDS.
        ttft: Of streams, if there were any; else first bytes of all calls.
        itl: Gaps between events of streams.
        ended: Outcome -> calls.
    """

    number: int
    ttft: Buckets
    itl: Buckets
    ended: dict[str, int]


class Pulse:
    def __init__(
        self, collect: Callable[[], Iterable[Samples]], clock: Callable[[], float] = time
    ) -> None:
        """`clock` gives Unix seconds."""
        self._collect = collect
        self._clock = clock
        self._before = read(collect())
        self._slots: deque[PulseSlot] = deque(maxlen=KEPT_SLOTS)

    def slots(self) -> list[PulseSlot]:
        """Oldest first; none for times at which nothing happened."""
        oldest = int(self._clock()) // SLOT_SECONDS - KEPT_SLOTS
        return [slot for slot in self._slots if slot.number > oldest]

    def beat(self) -> None:
        """A slot is over."""
        now = read(self._collect())
        before, self._before = self._before, now

        def grown(family: MetricDeclaration) -> Buckets:
            return _grown(before.get(family.name, {}), now.get(family.name, {}))

        ended = {outcome: round(calls) for outcome, calls in grown(families.CALLS).items()}
        ttft = grown(families.TTFT_SECONDS) or grown(families.FIRST_BYTE_SECONDS)
        itl = grown(families.ITL_SECONDS)
        if ended or ttft or itl:
            # It began a slot before it is over.
            number = round(self._clock() / SLOT_SECONDS) - 1
            self._slots.append(PulseSlot(number, ttft, itl, ended))

    async def run(self) -> None:
        while True:
            await asyncio.sleep(SLOT_SECONDS - self._clock() % SLOT_SECONDS)
            self.beat()


def read(metrics: Iterable[Samples]) -> Mapping[str, Buckets]:
    """What has been counted so far of those that are looked at, by the name of the family."""
    found: dict[str, Buckets] = {}
    seconds = {family.name for family in _SECONDS}
    for metric in metrics:
        if metric.name in seconds:
            found[metric.name] = _apart(_by_label(metric, "_bucket", "le"))
        elif metric.name == families.CALLS.name:
            found[metric.name] = _by_label(metric, "_total", "outcome")
    return found


def together(parts: Iterable[Iterable[PulseSlot]]) -> list[PulseSlot]:
    """Slots of several processes, oldest first."""
    found: dict[int, list[PulseSlot]] = {}
    for slots in parts:
        for slot in slots:
            found.setdefault(slot.number, []).append(slot)
    return [
        PulseSlot(
            number,
            _sum(slot.ttft for slot in same),
            _sum(slot.itl for slot in same),
            {how: round(calls) for how, calls in _sum(slot.ended for slot in same).items()},
        )
        for number, same in sorted(found.items())
    ]


def quantiles(shares: Sequence[float], buckets: Mapping[str, float]) -> list[float]:
    """Values below which each share is, in order; nothing where nothing was counted.

    What lies beyond the last bound is taken to be there.
    """
    found: list[float] = []
    total = sum(buckets.values())
    so_far = lower = 0.0
    for bound, count in sorted((float(bound), count) for bound, count in buckets.items()):
        upper = lower if bound == inf else bound
        while count and len(found) < len(shares) and so_far + count >= shares[len(found)] * total:
            within = (shares[len(found)] * total - so_far) / count
            found.append(lower + (upper - lower) * within)
        so_far, lower = so_far + count, upper
    return found


def points(slots: Iterable[PulseSlot]) -> Iterator[dict[str, Any]]:
    """What a chart draws: [p50, p95, p99] in milliseconds, and calls per second."""
    for slot in slots:
        ended = Counter(slot.ended)
        fine, gone = ended.pop("ok", 0), ended.pop("client_gone", 0)
        yield {
            "at": slot.number * SLOT_SECONDS,
            "ttft_ms": _milliseconds(slot.ttft),
            "itl_ms": _milliseconds(slot.itl),
            "ok": fine / SLOT_SECONDS,
            "gone": gone / SLOT_SECONDS,
            "failed": ended.total() / SLOT_SECONDS,
        }


def _milliseconds(buckets: Mapping[str, float]) -> list[float]:
    return [round(seconds * 1000, 2) for seconds in quantiles(SHARES, buckets)]


def _by_label(metric: Samples, suffix: str, label: str) -> Buckets:
    """The sum over all other labels."""
    found: Buckets = {}
    name = metric.name + suffix
    for sample in metric.samples:
        if sample.name == name:
            key = sample.labels[label]
            found[key] = found.get(key, 0.0) + sample.value
    return found


def _apart(cumulative: Buckets) -> Buckets:
    """How many are in each bucket, of how many are below each bound."""
    in_order = sorted(cumulative, key=float)
    below = {bound: cumulative[before] for before, bound in pairwise(in_order)}
    return {bound: cumulative[bound] - below.get(bound, 0.0) for bound in in_order}


def _grown(before: Buckets, now: Buckets) -> Buckets:
    """Empty if nothing has."""
    found = {key: value - before.get(key, 0.0) for key, value in now.items()}
    return found if any(found.values()) else {}


def _sum(several: Iterable[Mapping[str, float]]) -> Buckets:
    found: Buckets = {}
    for one in several:
        for key, value in one.items():
            found[key] = found.get(key, 0.0) + value
    return found
