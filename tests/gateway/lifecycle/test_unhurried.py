"""A server that looks after itself rarely ends as soon as it is told to, and knows the date."""

import asyncio
import signal
from typing import Any

import pytest
import uvicorn

from pdgate.gateway.lifecycle import unhurried
from pdgate.gateway.lifecycle.unhurried import Unhurried

PATIENCE_SECONDS = 10.0


async def nothing(scope: Any, receive: Any, send: Any) -> None: ...


@pytest.fixture
def server() -> Unhurried:
    return Unhurried(uvicorn.Config(nothing, log_config=None))


async def test_it_ends_when_it_is_told_to(
    server: Unhurried, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unhurried, "TICK_SECONDS", 600.0)
    async with asyncio.timeout(PATIENCE_SECONDS):
        serving = asyncio.create_task(server.main_loop())
        await asyncio.sleep(0)
        server.handle_exit(signal.SIGTERM, None)
        await serving

    assert server.should_exit
    assert not server.force_exit


async def test_who_was_told_before_it_served_ends_at_once(server: Unhurried) -> None:
    server.handle_exit(signal.SIGTERM, None)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await server.main_loop()


async def test_a_second_interrupt_hurries_it(server: Unhurried) -> None:
    server.handle_exit(signal.SIGTERM, None)
    server.handle_exit(signal.SIGINT, None)

    assert server.force_exit


async def test_the_date_is_written_at_each_tick(
    server: Unhurried, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unhurried, "TICK_SECONDS", 0.001)
    times = iter([784111777.0, 784111778.0])
    last = b"Sun, 06 Nov 1994 08:49:38 GMT"
    monkeypatch.setattr("uvicorn.server.time.time", lambda: next(times, 784111778.0))
    async with asyncio.timeout(PATIENCE_SECONDS):
        serving = asyncio.create_task(server.main_loop())
        # Nobody is told of a tick.
        while dict(server.server_state.default_headers).get(b"date") != last:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        server.handle_exit(signal.SIGTERM, None)
        await serving
