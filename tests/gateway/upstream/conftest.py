"""An event loop for what is fed by hand."""

import asyncio
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Never run: nothing here waits."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()
