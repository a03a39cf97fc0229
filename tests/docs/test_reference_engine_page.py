"""The page of the reference engine names what it serves, and what it bounds."""

import asyncio
import re

import pytest
from starlette.routing import Route

from pdgate.engine.api import app
from pdgate.engine.api.service import EngineService
from pdgate.engine.cache.memory import KvMemory
from pdgate.engine.constrained import schema
from pdgate.engine.core import EngineCore
from pdgate.engine.metrics import EngineMetrics
from pdgate.engine.output_queue import OutputQueue
from tests.docs.pages import DOCS
from tests.support.engine_cores import layout, tiny

PAGE = DOCS / "reference-engine.md"


async def served() -> set[str]:
    where = layout()
    output_queue = OutputQueue(asyncio.get_running_loop())
    core = EngineCore(
        tiny(),
        where,
        KvMemory(where, [memoryview(bytearray(where.total_bytes))]),
        output_queue.deliver,
    )
    built = app.build(
        EngineService(core, output_queue, EngineMetrics(core, None, "tiny"), ("tiny",), 32)
    )
    return {route.path for route in built.routes if isinstance(route, Route)}


@pytest.mark.source
async def test_its_routes_are_those_of_the_engine() -> None:
    rows = re.findall(r"^\| `(?:POST|GET) (.*?) \|", PAGE.read_text(), re.MULTILINE)

    assert {path for row in rows for path in re.findall(r"/[\w/]+", row)} == await served()


@pytest.mark.source
def test_its_bounds_are_those_of_the_engine() -> None:
    page = PAGE.read_text()

    assert f"| {schema.MOST_CHARACTERS} characters of" in page
    assert f"| {schema.MOST_ITEMS} items |" in page
    assert f"| {schema.ANY_DEPTH} levels, {schema.ANY_ITEMS} items each |" in page
    assert all(f"`{word}`" in page for words in schema.KNOWN.values() for word in words)
