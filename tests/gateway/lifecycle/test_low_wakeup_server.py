"""A server that looks after itself rarely ends as soon as it is told to, and knows the date."""

import asyncio
import signal
import socket
from types import FrameType
from typing import Any

import pytest
import uvicorn
from uvicorn.server import HANDLED_SIGNALS

from pdgate.gateway.lifecycle import low_wakeup_server
from pdgate.gateway.lifecycle.low_wakeup_server import LowWakeupServer
from tests.support import waiting

PATIENCE_SECONDS = waiting.PATIENCE_SECONDS


async def nothing(scope: Any, receive: Any, send: Any) -> None: ...


@pytest.fixture
def server() -> LowWakeupServer:
    return LowWakeupServer(uvicorn.Config(nothing, log_config=None))


async def test_it_ends_when_it_is_told_to(
    server: LowWakeupServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(low_wakeup_server, "TICK_SECONDS", 600.0)
    async with asyncio.timeout(PATIENCE_SECONDS):
        serving = asyncio.create_task(server.main_loop())
        await asyncio.sleep(0)
        server.handle_exit(signal.SIGTERM, None)
        await serving

    assert server.should_exit
    assert not server.force_exit


async def test_who_was_told_before_it_served_ends_at_once(server: LowWakeupServer) -> None:
    server.handle_exit(signal.SIGTERM, None)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await server.main_loop()


def test_a_signal_before_uvicorn_listens_to_any_ends_it_well() -> None:
    class Early(LowWakeupServer):
        async def serve(self, sockets: list[socket.socket] | None = None) -> None:
            signal.raise_signal(signal.SIGTERM)
            await super().serve(sockets)

    def raises(number: int, frame: FrameType | None) -> None:
        raise SystemExit(1)

    before = {number: signal.signal(number, raises) for number in HANDLED_SIGNALS}
    try:
        server = Early(uvicorn.Config(nothing, port=0, lifespan="off", log_config=None))
        server.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert not server.force_exit


async def test_a_second_interrupt_hurries_it(server: LowWakeupServer) -> None:
    server.handle_exit(signal.SIGTERM, None)
    server.handle_exit(signal.SIGINT, None)

    assert server.force_exit


async def test_the_date_is_written_at_each_tick(
    server: LowWakeupServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(low_wakeup_server, "TICK_SECONDS", 0.001)
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
