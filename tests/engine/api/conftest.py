"""An engine behind its HTTP face, in the process of the test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx2
import pytest

from pdgate.engine.api import app
from pdgate.engine.api.service import EngineService
from pdgate.engine.cache.memory import KvMemory
from pdgate.engine.core import EngineCore
from pdgate.engine.metrics import EngineMetrics
from pdgate.engine.output_queue import OutputQueue
from pdgate.engine.pace import Faults
from tests.support.engine_cores import layout, tiny
from tests.support.fake_connector import FakeConnector, Meeting


@dataclass
class Served:
    """A client of an engine, and the engine's core."""

    http: httpx2.AsyncClient
    core: EngineCore


@asynccontextmanager
async def serve(
    faults: Faults | None = None, meeting: Meeting | None = None, *, head_first: bool = False
) -> AsyncIterator[Served]:
    where = layout(blocks=256)
    memory = memoryview(bytearray(where.total_bytes))
    output_queue = OutputQueue(asyncio.get_running_loop())
    core = EngineCore(tiny(), where, KvMemory(where, [memory]), output_queue.deliver, faults=faults)
    connector = None
    if meeting is not None:
        core.connect(connector := FakeConnector(core, memory, meeting))
    metrics = EngineMetrics(core, connector, "tiny")
    service = EngineService(
        core,
        output_queue,
        metrics,
        ("tiny", "alias"),
        default_max_tokens=32,
        head_first=head_first,
    )
    transport = httpx2.ASGITransport(app.build(service), raise_app_exceptions=False)
    core.start()
    try:
        async with httpx2.AsyncClient(transport=transport, base_url="http://engine") as http:
            yield Served(http, core)
    finally:
        await asyncio.to_thread(core.stop)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serve() as made:
        yield made
