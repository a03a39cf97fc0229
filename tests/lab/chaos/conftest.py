"""One topology for all tests that disturb the gateway; it takes seconds to start."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.lab.chaos.asking import undisturbed
from tests.lab.chaos.topology import ALONE, Topology, topology


@pytest_asyncio.fixture(loop_scope="package", scope="package")
async def running_topology() -> AsyncIterator[Topology]:
    async with topology() as it:
        yield it


@pytest_asyncio.fixture(loop_scope="package", scope="package")
async def right(running_topology: Topology) -> dict[str, str]:
    """Prompt -> what an engine says that nobody disturbs."""
    return await undisturbed(running_topology.http, running_topology.alone, ALONE)
