"""Both event loops for what runs; one that never runs for what is fed by hand."""

import asyncio
from collections.abc import Callable, Iterator, Mapping

import pytest
import uvloop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Never run: nothing here waits."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()
