"""Metrics page of several workers, whichever of them is asked.

Each worker writes what it has counted into a folder that they share, when it is asked
and every WRITE_SECONDS, and adds up what all have written:

    <folder>/<worker>.json     its families and samples, replaced as a whole
    <folder>/<worker>.alive    locked by the worker for as long as it lives
    <folder>/dead              the same of all that have died, and which pages are in it

Counters and histograms of a worker that has died stay, or they would seem to go back;
its gauges go. The others put its page into that of the dead: a page for each worker that ever was would make each
look dearer than the one before. How samples of one name and labels merge is declared with their family
(gateway/metrics/family.py).
"""

import asyncio
import json
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any

from prometheus_client.samples import Sample

from pdgate.cluster.complaint import Complaint
from pdgate.gateway.metrics.family import SampleMerge, Samples, Source
from pdgate.gateway.metrics.page import in_turns
from pdgate.gateway.sync.workers.membership import (
    is_locked,
    lock,
    lock_at_once,
    other_paths,
    own_path,
)

log = logging.getLogger(__name__)

DEAD = "dead"
MOST_NAMED = 256
"""Of the pages that are in that of the dead: one that was read a moment ago is not to count twice."""
WRITE_SECONDS = 0.5
WRITING_SHARE = 50
"""Times as long as writing takes, no writing is done."""


class WorkerMetrics:
    """The metrics of all workers, merged by the one that is asked.

    Attributes:
        own: Those of this one.
    """

    def __init__(self, own: Source, folder: Path) -> None:
        self.own = own
        self._writing = Lock()
        self._looks = self._written = 0
        self._path = own_path(folder, "json")
        # Kept open, and so locked, until the process ends in whatever way.
        self._alive = self._path.with_suffix(".alive").open("wb")
        lock(self._alive)
        self._complaint = Complaint(log, "other workers cannot see this one's metrics")

    async def collect(self) -> list[Samples]:
        """Raises OSError if the folder cannot be used any more.

        Those of a few workers take half a second, aside, as nothing of them is shared.
        """
        number = self._number()
        return await asyncio.to_thread(self.together, number, await in_turns(self.own()))

    def together(self, number: int, own: Sequence[Samples]) -> list[Samples]:
        """All workers' and its own, which are that look at them. Raises OSError."""
        self._write(number, own)
        pages = {path.name: _page(path) for path in other_paths(self._path)}
        # Only now: a page that has gone meanwhile is in it, and so may be one that was still there.
        dead = self._dead_ones()
        found = [page for name, page in pages.items() if name not in dead["pages"]]
        return _merged([own, *found, map(_from_json, dead["families"])])

    async def run(self) -> None:
        """Lets the others know, so that they can tell it when this worker is no more."""
        try:
            while True:
                began = monotonic()
                number = self._number()
                await asyncio.to_thread(self._try_to_write, number, await in_turns(self.own()))
                await asyncio.sleep(max(WRITE_SECONDS, WRITING_SHARE * (monotonic() - began)))
        finally:
            self._try_to_write(self._number(), self.own())

    def close(self) -> None:
        """Leave, as if the process had ended."""
        self._alive.close()

    def _try_to_write(self, number: int, families: Iterable[Samples]) -> None:
        # Calls are served all the same.
        with self._complaint.catching(OSError):
            self._write(number, families)
            self._put_dead_together()

    def _number(self) -> int:
        """Of the look at its own metrics that begins now."""
        self._looks += 1
        return self._looks

    def _write(self, number: int, families: Iterable[Samples]) -> None:
        written = json.dumps([_as_json(samples) for samples in families])
        unfinished = self._path.with_suffix(".new")
        with self._writing:
            # Threads may end in another order than they began, and counters must not go back.
            if number > self._written:
                unfinished.write_text(written)
                unfinished.replace(self._path)
                self._written = number

    def _dead_ones(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self._path.parent / DEAD).read_bytes())
        except FileNotFoundError:
            return {"pages": [], "families": []}
        return found

    def _put_dead_together(self) -> None:
        """Put the pages of the dead into theirs, unless another worker is doing it."""
        if not any(_is_of_the_dead(path) for path in other_paths(self._path)):
            return
        with (self._path.parent / f"{DEAD}.lock").open("wb") as only_one:
            if not lock_at_once(only_one):
                return
            # What the one before has left.
            gone = {path: page for path in other_paths(self._path)
                    if _is_of_the_dead(path) and (page := _page(path))}  # fmt: skip
            dead = self._dead_ones()
            found = [page for path, page in gone.items() if path.name not in dead["pages"]]
            families = _merged([map(_from_json, dead["families"]), *found])
            names = [*dead["pages"], *(path.name for path in gone)][-MOST_NAMED:]
            unfinished = self._path.with_suffix(".dead")
            unfinished.write_text(
                json.dumps({"pages": names, "families": [_as_json(each) for each in families]})
            )
            unfinished.replace(self._path.parent / DEAD)
            for path in gone:
                path.unlink()
                path.with_suffix(".alive").unlink(missing_ok=True)


def _is_of_the_dead(page: Path) -> bool:
    try:
        with page.with_suffix(".alive").open("rb") as held:
            return not is_locked(held)
    except FileNotFoundError:
        # It was put into that of the dead since it was listed.
        return False


def _page(path: Path) -> list[Samples]:
    """What another worker has counted; of a dead one what never falls; nothing where that is put with the other dead."""
    is_dead = _is_of_the_dead(path)
    try:
        found = map(_from_json, json.loads(path.read_bytes()))
    except FileNotFoundError:
        return []
    return [samples for samples in found if not (is_dead and samples.type == "gauge")]


def _merged(pages: Iterable[Iterable[Samples]]) -> list[Samples]:
    merged: dict[str, _Merged] = {}
    for page in pages:
        for samples in page:
            if samples.name in merged:
                merged[samples.name].add(samples.samples)
            else:
                merged[samples.name] = _Merged(samples)
    return [each.samples() for each in merged.values()]


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
