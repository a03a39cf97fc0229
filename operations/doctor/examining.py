"""An examination: all engines looked at, those that are well probed, and engine ids remembered.

An engine id that has survived a restart is pinned. Those of the last run are in a file:

    {"http://10.0.0.1:8100": {"engine_id": "...", "started": 1789.5}}
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import httpx2

from pdgate.operations.doctor import collect, probing
from pdgate.operations.doctor.seen import Examined, Gatewise, Probes, SeenEngine
from pdgate.protocols.instance import Instance

AT_A_TIME = 16

NO_PROBES = "--no-probe: engines were only looked at"

Ids = Mapping[str, tuple[str, float]]
"""URL of an engine -> its id, and what is another for each start of its process."""


class Bar(Protocol):
    """Display of progress."""

    def add(self, steps: int) -> None:
        """Add steps that are to be made."""

    def step(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Wish:
    """
    Attributes:
        lease_seconds: How long the gateway believes prefill to keep KV; None for what the protocol says.
        before: Engine ids of the last run.
        kv_secrets: Of the fleet, where engines publish KV events for its members alone.
        starts: Command line of an engine -> what stands against its start.
    """

    instances: Sequence[Instance]
    client: Callable[[], httpx2.AsyncClient]
    probes: bool = True
    lease_seconds: float | None = None
    before: Ids | None = None
    gatewise: Sequence[Gatewise] = ()
    kv_secrets: Sequence[str] = ()
    starts: Mapping[str, Sequence[str]] = field(default_factory=dict)


async def examine(wish: Wish, bar: Bar) -> Examined:
    async with wish.client() as client:
        bar.add(len(wish.instances))
        fleet = await _look(client, wish.instances, bar)
        if wish.probes:
            bar.add(probing.steps(fleet))
            probes = await probing.probe(client, fleet, bar.step, wish.kv_secrets)
        else:
            probes = Probes(made=False)
    before = wish.before or {}
    return Examined(fleet, probes, wish.lease_seconds, before, wish.gatewise, wish.starts)


def ids_of(examined: Examined) -> Ids:
    """Engine ids, for the next time."""
    return {
        seen.instance.url: (name, seen.started)
        for seen in examined.well
        if (name := examined.engine_id(seen)) and seen.started is not None
    }


def read_ids(path: Path) -> Ids:
    """Those in a file; empty before the first run. Raises ValueError."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None
    try:
        return {
            url: (str(entry["engine_id"]), float(entry["started"]))
            for url, entry in json.loads(text).items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{path} was not written by pdgate doctor --remember") from None


def write_ids(path: Path, before: Ids, found: Ids) -> None:
    """Write ids to a file, where those that did not answer stay as they were. Raises OSError."""
    known = {**before, **found}
    entries = {
        url: {"engine_id": name, "started": started} for url, (name, started) in known.items()
    }
    path.write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")


async def _look(
    client: httpx2.AsyncClient, instances: Sequence[Instance], bar: Bar
) -> list[SeenEngine]:
    found: dict[str, SeenEngine] = {}
    turns = asyncio.Semaphore(AT_A_TIME)

    async def one(instance: Instance) -> None:
        async with turns:
            found[instance.id] = await collect.look(client, instance)
        bar.step()

    async with asyncio.TaskGroup() as group:
        for instance in instances:
            group.create_task(one(instance))
    return [found[instance.id] for instance in instances]
