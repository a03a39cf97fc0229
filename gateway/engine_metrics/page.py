"""A page of an engine's /metrics: only the lines that are wanted, and nothing that it trips over.

    vllm:num_requests_running{engine="0",model_name="m"} 3.0
    `---------- name -------' `-------- labels --------' `- value, maybe a timestamp

Pages have thousands of lines, most of them buckets of histograms, so a line is looked at no
further than its name unless the name is known. Of several series of one name (data-parallel
ranks) counters and requests are added up, and shares averaged. A number that cannot be, being
negative or beyond MOST, is not believed: it is as if the line was not there.

Source of the format: Prometheus, "Exposition formats", text format 0.0.4.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Final

from pdgate.gateway.engine_metrics.counters import EngineCounters
from pdgate.gateway.engine_metrics.families import (
    BY_LABEL,
    CACHE_CONFIG,
    COUNTERS,
    GAUGES,
    KV_TOKENS,
    KV_USED,
    QUEUE_UP,
    QUEUE_WAITING,
    QUEUED_TOKENS,
    RUNNING,
    TRANSFERRING,
    WAITING,
)

SLICE_BYTES: Final = 128 << 10
"""Read at once: of the costliest lines, empty ones, these take 10 ms."""

MOST_REQUESTS: Final = 1_000_000
MOST_TOKENS: Final = 1_000_000_000_000
MOST: Final = {
    RUNNING: MOST_REQUESTS,
    WAITING: MOST_REQUESTS,
    TRANSFERRING: MOST_REQUESTS,
    KV_TOKENS: MOST_TOKENS,
    QUEUED_TOKENS: MOST_TOKENS,
    QUEUE_WAITING: MOST_REQUESTS,
}


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """What one answer to GET /metrics says; None for what it does not.

    Attributes:
        running, waiting: Requests, now.
        transferring: Of those that wait, the ones whose KV is under way.
        kv_used: Share of KV pages that are held, 0..1.
        kv_tokens: Of how many its pages can hold the KV.
        queued_tokens: Prompt tokens that it has still to compute.
        block_tokens: Tokens in a KV page.
        queue_up: Whether it reaches the prefill queue, if it has one.
        queue_waiting: Prompts in that queue that no worker has taken.
    """

    counters: EngineCounters = field(default_factory=EngineCounters)
    running: int | None = None
    waiting: int | None = None
    transferring: int | None = None
    kv_used: float | None = None
    kv_tokens: int | None = None
    queued_tokens: int | None = None
    block_tokens: int | None = None
    queue_up: bool | None = None
    queue_waiting: int | None = None


async def parse_in_turns(page: bytes, rank: int | None = None) -> MetricsPage:
    """Parse as `parse` does, with turns for others between slices."""
    if len(page) <= SLICE_BYTES:
        return parse(page, rank)
    sums, at = _Sums(rank), 0
    while at < len(page):
        end = page.find(b"\n", at + SLICE_BYTES)
        end = len(page) if end < 0 else end + 1
        sums.add(page[at:end])
        at = end
        await asyncio.sleep(0)
    return sums.page()


def parse(page: bytes, rank: int | None = None) -> MetricsPage:
    """Lines that cannot be read are passed over. `rank`: only of this data-parallel rank."""
    sums = _Sums(rank)
    sums.add(page)
    return sums.page()


RANKS: Final = (b'engine="', b'dp_rank="')
"""Labels of a data-parallel rank: vLLM's, and SGLang's (scheduler_metrics_mixin.py, labels of its collector)."""


class _Sums:
    """What the lines say together."""

    def __init__(self, rank: int | None) -> None:
        self._of_rank = (
            () if rank is None else tuple((mark, mark + b'%d"' % rank) for mark in RANKS)
        )
        self._found: dict[str, float] = {}
        self._times: dict[str, int] = {}
        self._block_tokens: int | None = None

    def add(self, lines: bytes) -> None:
        found, times, of_rank = self._found, self._times, self._of_rank
        for name, line in _wanted(lines):
            labels = line[len(name) : line.rfind(b"}") + 1]
            if of_rank and any(mark in labels and own not in labels for mark, own in of_rank):
                continue
            meant, value = _meant(name, labels), _value(line)
            if name == CACHE_CONFIG:
                self._block_tokens = tokens = _whole_number(_label(labels, b"block_size"))
                blocks = _whole_number(_label(labels, b"num_gpu_blocks"))
                value = tokens * blocks if tokens and blocks else None
            if meant is not None and value is not None and 0 <= value <= MOST.get(meant, inf):
                found[meant] = found.get(meant, 0.0) + value
                times[meant] = times.get(meant, 0) + 1

    def page(self) -> MetricsPage:
        found, times = dict(self._found), self._times
        amounts = {gauge: int(found.pop(gauge)) for gauge in MOST if gauge in found}
        used, queue_up = found.pop(KV_USED, None), found.pop(QUEUE_UP, None)
        return MetricsPage(
            EngineCounters(**found),
            **amounts,
            kv_used=None if used is None else min(1.0, used / times[KV_USED]),
            block_tokens=self._block_tokens,
            queue_up=None if queue_up is None else queue_up >= times[QUEUE_UP],
        )


_FIELDS = {**COUNTERS, **GAUGES, CACHE_CONFIG: KV_TOKENS}
_WANTED = frozenset((*_FIELDS, *BY_LABEL))
_SHORTEST = min(map(len, _WANTED))
_BEGINNINGS = frozenset(name[:_SHORTEST] for name in _WANTED)
"""Of names, which tell nearly all lines that are not wanted without looking for a name's end."""


def _meant(name: bytes, labels: bytes) -> str | None:
    """The field that a line is about."""
    if name in BY_LABEL:
        label, fields = BY_LABEL[name]
        return fields.get(_label(labels, label))
    return _FIELDS[name]


def _wanted(page: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(name, line)"""
    for line in page.split(b"\n"):
        if line[:_SHORTEST] not in _BEGINNINGS:
            continue
        end = line.find(b"{")
        name = line[: end if end >= 0 else line.find(b" ")]
        if name in _WANTED:
            yield name, line


def _label(labels: bytes, name: bytes) -> bytes:
    """Its value, empty if there is none. A quote inside another label's value is escaped."""
    for before in (b"{", b","):
        opening = before + name + b'="'
        start = labels.find(opening)
        if start >= 0:
            start += len(opening)
            return labels[start : labels.find(b'"', start)]
    return b""


def _value(line: bytes) -> float | None:
    """Behind the labels, or the name; a timestamp may follow."""
    _, _, after = line.rpartition(b"}") if b"}" in line else line.partition(b" ")
    try:
        value = float(after.split()[0])
    except (ValueError, IndexError):
        return None
    return value if isfinite(value) else None


def _whole_number(text: bytes) -> int | None:
    return int(text) if text.isdigit() and len(text) < 10 else None
