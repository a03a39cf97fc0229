"""Engines whose ranks are processes, without HTTP: the cores are real, and so are regions, movers and ports of the ranks."""

import os
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import pytest

from pdgate.engine.cache.memory import PagedKv
from pdgate.engine.core import EngineCore
from pdgate.engine.hand_over.two_sided import TwoSided
from pdgate.engine.layout import Layout
from pdgate.engine.meeting import met
from pdgate.engine.pace import StepPace
from pdgate.engine.ranks.connector import RanksConnector
from pdgate.engine.ranks.seats import stages
from pdgate.engine.settings import EngineRole, EngineSettings
from pdgate.transfer import registry
from pdgate.transfer.runtime.fleet import Identity
from tests.support.core_pairs import Row, Side, Watched, side
from tests.support.engine_cores import Engine, layout, tiny
from tests.support.waiting import wait_until


class Ranks(NamedTuple):
    tp: int = 1
    pp: int = 1

    def layout(self, blocks: int = 32) -> Layout:
        where = layout(blocks, 16, self.tp)
        return replace(where, stages=stages(where.layers, self.pp))

    def __str__(self) -> str:
        return f"tp{self.tp}pp{self.pp}"


def ranked(
    stack: ExitStack,
    role: EngineRole,
    row: Row,
    backend: str,
    ranks: Ranks,
    lost: list[str],
    queue: str = "",
    *,
    blocks: int = 32,
    pace: StepPace | None = None,
    lease_seconds: float = 30.0,
) -> Side:
    """A running engine that ends with the stack; with several ranks they are processes."""
    where = ranks.layout(blocks)
    made = Engine(memoryview(b""))
    settings = EngineSettings(
        role=role,
        protocol=row.protocol,
        transfer=backend,
        tp=ranks.tp,
        pp=ranks.pp,
        queue=queue,
        lease_seconds=lease_seconds,
    )

    def core(memory: PagedKv) -> EngineCore:
        made.core = Watched(tiny(), where, memory, made.deliver, None, pace)
        return made.core

    of, connector = met(
        settings, core, where, replace(tiny(), root="tiny"), 1, Identity(), lost.append, stack
    )
    of.connect(connector)
    of.start()
    stack.callback(of.stop)
    assert isinstance(of, Watched)
    assert isinstance(connector, TwoSided | RanksConnector)
    return Side(made, of, connector, 1)


def alone(stack: ExitStack, role: EngineRole, row: Row, pace: StepPace | None = None) -> Side:
    """A running engine of one process, which keeps pages for readers for a moment only."""
    backend = registry.load("tcp")
    stack.callback(backend.close)
    where = layout(32)
    return side(stack, role, row.protocol, backend, where, pace=pace, lease_seconds=2.0)


def pids(of: Side) -> list[int]:
    assert isinstance(of.connector, RanksConnector)
    return [rank.process.pid for rank in of.connector._crew._ranks]


def holds_nothing(of: Side) -> bool:
    return of.core.gauges.blocks_used == 0


def ended_for_good(of: Side, lost: list[str]) -> None:
    wait_until(lambda: not of.core.alive, "the engine has ended")
    # In a step it is the core that notices first.
    wait_until(lambda: lost, "the engine is told why")
    wait_until(partial(holds_nothing, of), "no page in use")
    assert len(lost) == 1
    assert of.core.trouble
    for pid in pids(of):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
