"""Metrics page of several workers, whichever of them is asked.

Each worker writes what it has counted into a folder that they share, when it is asked
and every WRITE_SECONDS, and adds up what all have written:

    <folder>/<worker>.json     its families and samples, replaced as a whole
    <folder>/<worker>.alive    locked by the worker for as long as it lives

Counters and histograms of a worker that has died stay, or they would seem to go back;
its gauges go. How samples of one name and labels merge is declared with their family
(gateway/metrics/family.py).
"""

import asyncio
import json
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

from prometheus_client.samples import Sample

from pdgate.cluster.complaint import Complaint
from pdgate.gateway.metrics.family import SampleMerge, Samples, Source
from pdgate.gateway.sync.workers.membership import is_locked, lock, other_paths, own_path

log = logging.getLogger(__name__)

WRITE_SECONDS = 0.5
WRITING_SHARE = 50
"""Times as long as writing takes, no writing is done."""


class WorkerMetrics:
    """The metrics of all workers, merged by the one that is asked."""

    def __init__(self, own: Source, folder: Path) -> None:
        self._own = own
        self._path = own_path(folder, "json")
        # Kept open, and so locked, until the process ends in whatever way.
        self._alive = self._path.with_suffix(".alive").open("wb")
        lock(self._alive)
        self._complaint = Complaint(log, "other workers cannot see this one's metrics")

    def collect(self) -> Iterator[Samples]:
        """Raises OSError if the folder cannot be used any more."""
        own = list(self._own())
        self._write(own)
        merged = {samples.name: _Merged(samples) for samples in own}
        for path in other_paths(self._path):
            with path.with_suffix(".alive").open("rb") as held:
                alive = is_locked(held)
            for samples in map(_from_json, json.loads(path.read_bytes())):
                if not alive and samples.type == "gauge":
                    continue
                if samples.name in merged:
                    merged[samples.name].add(samples.samples)
                else:
                    merged[samples.name] = _Merged(samples)
        return (each.samples() for each in merged.values())

    async def run(self) -> None:
        """Lets the others know, so that they can tell it when this worker is no more."""
        try:
            while True:
                began = monotonic()
                self._try_to_write()
                # With many models it takes a while, in which no call moves.
                await asyncio.sleep(max(WRITE_SECONDS, WRITING_SHARE * (monotonic() - began)))
        finally:
            self._try_to_write()

    def close(self) -> None:
        """Leave, as if the process had ended."""
        self._alive.close()

    def _try_to_write(self) -> None:
        # Calls are served all the same.
        with self._complaint.catching(OSError):
            self._write(self._own())

    def _write(self, families: Iterable[Samples]) -> None:
        unfinished = self._path.with_suffix(".new")
        unfinished.write_text(json.dumps([_as_json(samples) for samples in families]))
        unfinished.replace(self._path)


class _Merged:
    """One family, of several workers."""

    def __init__(self, first: Samples) -> None:
        self._first = first
        self._values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self.add(first.samples)

    def add(self, samples: Iterable[Sample]) -> None:
        merge = self._first.merge.of
        for sample in samples:
            key = sample.name, tuple(sample.labels.items())
            value = float(sample.value)
            before = self._values.get(key)
            self._values[key] = value if before is None else merge(before, value)

    def samples(self) -> Samples:
        first = self._first
        found = Samples(first.name, first.documentation, first.type, first.merge)
        for (name, labels), value in self._values.items():
            found.add_sample(name, dict(labels), value)
        return found


def _as_json(samples: Samples) -> dict[str, Any]:
    return {
        "name": samples.name,
        "documentation": samples.documentation,
        "type": samples.type,
        "merge": samples.merge,
        "samples": [[each.name, each.labels, each.value] for each in samples.samples],
    }


def _from_json(found: dict[str, Any]) -> Samples:
    samples = Samples(
        found["name"], found["documentation"], found["type"], SampleMerge(found["merge"])
    )
    for name, labels, value in found["samples"]:
        samples.add_sample(name, labels, value)
    return samples
