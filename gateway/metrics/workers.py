"""One page of metrics for several workers, whichever of them is asked.

Each worker writes what it has counted into a folder that they share, when it is asked
and every WRITE_SECONDS, and adds up what all have written:

    <folder>/<worker>.json     its families and samples, replaced as a whole
    <folder>/<worker>.alive    locked by the worker for as long as it lives

Counters and histograms of a worker that has died stay, or they would seem to go back;
its gauges go. What is no amount (NO_AMOUNTS) is not added up: the highest counts.
"""

import asyncio
import fcntl
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from operator import add
from pathlib import Path
from time import monotonic
from typing import Any

from prometheus_client import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

log = logging.getLogger(__name__)

WRITE_SECONDS = 0.5
WRITING_SHARE = 50
"""Times as long as writing takes, no writing is done."""
NO_AMOUNTS = frozenset(
    {
        "pdgate_pinned_engine_id",
        "pdgate_draining",
        "pdgate_instance_state",
        "pdgate_instance_up",
        # Each worker knows of the others' (gateway/neighbours/).
        "pdgate_instance_calls",
        # One of them decides, and the others do as it says.
        "pdgate_instance_side",
        "pdgate_side_pressure",
        "pdgate_prediction_error",
        "pdgate_prediction_bias",
        "pdgate_directory_degraded",
        "pdgate_redis_degraded",
        # Every worker listens to the same replicas.
        "pdgate_replicas",
        "pdgate_replicas_degraded",
        "pdgate_instance_replica_calls",
        "pdgate_directory_instances",
        "pdgate_directory_unusable",
        # Every worker reads the same engines.
        "pdgate_kv_verified_tokens",
        "pdgate_kv_expired_prompts",
        "pdgate_kv_late_reads",
        "pdgate_instance_misconfigured",
        "pdgate_instance_page_age_seconds",
    }
)


class WorkerMetrics(Collector):
    """What all workers have counted, as one of them tells it."""

    def __init__(self, own: Collector, folder: Path) -> None:
        self._own = own
        self._folder = folder
        self._name = f"{os.getpid()}-{os.urandom(4).hex()}"
        # Kept open, and so locked, until the process ends in whatever way.
        self._alive = (folder / f"{self._name}.alive").open("wb")
        fcntl.flock(self._alive, fcntl.LOCK_EX)

    def collect(self) -> Iterator[Metric]:
        """Raises OSError if the folder cannot be used any more."""
        own = list(self._own.collect())
        self._write(own)
        merged = {metric.name: _Sum(metric) for metric in own}
        for path in self._folder.glob("*.json"):
            if path.stem == self._name:
                continue
            alive = _is_locked(path.with_suffix(".alive"))
            for metric in _from_json(json.loads(path.read_bytes())):
                if alive or metric.type != "gauge":
                    merged.setdefault(metric.name, _Sum(_empty(metric))).add(metric.samples)
        return (each.metric() for each in merged.values())

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
        """As if the process had ended."""
        self._alive.close()

    def _try_to_write(self) -> None:
        try:
            self._write(self._own.collect())
        except OSError as error:
            # Calls are served all the same.
            log.warning("other workers cannot see this one's metrics: %s", error)

    def _write(self, metrics: Iterable[Metric]) -> None:
        unfinished = self._folder / f"{self._name}.new"
        unfinished.write_text(json.dumps([_as_json(metric) for metric in metrics]))
        unfinished.replace(self._folder / f"{self._name}.json")


class _Sum:
    """One family, added up."""

    def __init__(self, first: Metric) -> None:
        self._first = first
        self._add: Callable[[float, float], float] = add
        if first.name in NO_AMOUNTS:
            self._add = max
        self._values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self.add(first.samples)

    def add(self, samples: Iterable[Sample]) -> None:
        for sample in samples:
            key = sample.name, tuple(sample.labels.items())
            value = float(sample.value)
            before = self._values.get(key)
            self._values[key] = value if before is None else self._add(before, value)

    def metric(self) -> Metric:
        found = _empty(self._first)
        for (name, labels), value in self._values.items():
            found.add_sample(name, dict(labels), value)
        return found


def _empty(metric: Metric) -> Metric:
    return Metric(metric.name, metric.documentation, metric.type)


def _as_json(metric: Metric) -> dict[str, Any]:
    samples = [[sample.name, sample.labels, sample.value] for sample in metric.samples]
    return {
        "name": metric.name,
        "documentation": metric.documentation,
        "type": metric.type,
        "samples": samples,
    }


def _from_json(found: list[dict[str, Any]]) -> Iterator[Metric]:
    for each in found:
        metric = Metric(each["name"], each["documentation"], each["type"])
        for name, labels, value in each["samples"]:
            metric.add_sample(name, labels, value)
        yield metric


def _is_locked(path: Path) -> bool:
    """Shared locks do not exclude each other, so that two who ask at once both see it."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
