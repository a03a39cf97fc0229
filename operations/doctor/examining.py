"""Looks at all engines, probes those that are well, and remembers what is for the next time."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import httpx2

from pdgate.operations.doctor import looking, probing
from pdgate.operations.doctor.seen import Examined, Gatewise, Probes, Seen
from pdgate.protocols.instance import Instance

AT_A_TIME = 16

NO_PROBES = "--no-probe: engines were only looked at"


class Bar(Protocol):
    """Where progress is shown."""

    def add(self, steps: int) -> None:
        """So many more are to be made."""

    def step(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Wish:
    """
    Attributes:
        lease_seconds: How long the gateway believes prefill to keep KV; None for what the protocol says.
        before: Engine ids of the last run.
    """

    instances: Sequence[Instance]
    client: Callable[[], httpx2.AsyncClient]
    probes: bool = True
    lease_seconds: float | None = None
    before: Mapping[str, tuple[str, float]] | None = None
    gatewise: Sequence[Gatewise] = ()


async def examine(wish: Wish, bar: Bar) -> Examined:
    async with wish.client() as client:
        bar.add(len(wish.instances))
        fleet = await _look(client, wish.instances, bar)
        if wish.probes:
            bar.add(probing.steps(fleet))
            probes = await probing.probe(client, fleet, bar.step)
        else:
            probes = Probes(made=False)
    return Examined(fleet, probes, wish.lease_seconds, wish.before or {}, wish.gatewise)


def remembered(examined: Examined) -> dict[str, tuple[str, float]]:
    """Engine ids, for the next time."""
    return {
        seen.instance.url: (name, seen.started)
        for seen in examined.well
        if (name := examined.engine_id(seen)) and seen.started is not None
    }


async def _look(client: httpx2.AsyncClient, instances: Sequence[Instance], bar: Bar) -> list[Seen]:
    found: dict[str, Seen] = {}
    turns = asyncio.Semaphore(AT_A_TIME)

    async def one(instance: Instance) -> None:
        async with turns:
            found[instance.id] = await looking.look(client, instance)
        bar.step()

    async with asyncio.TaskGroup() as group:
        for instance in instances:
            group.create_task(one(instance))
    return [found[instance.id] for instance in instances]
