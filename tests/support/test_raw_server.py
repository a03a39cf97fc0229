"""What a scripted engine leaves behind disturbs whatever comes next in its process: nothing."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

import pytest
import uvloop

from tests.support.raw_server import Peer, raw_server
from tests.support.waiting import PATIENCE_SECONDS


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("turns", range(8))
def test_a_connection_that_has_just_come_is_closed_with_the_server(
    turns: int, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """Wherever it stands then: in the listener's queue, accepted, or about to be served."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(comes_late(turns))


async def comes_late(turns: int) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        async with raw_server(Peer.gone) as server:
            where = urlsplit(server.url)
            # Blocking, so that the loop has not turned when it is there.
            client.connect((where.hostname, where.port))
            client.setblocking(False)
            for _ in range(turns):
                await asyncio.sleep(0)

        async with asyncio.timeout(PATIENCE_SECONDS):
            with suppress(ConnectionResetError):
                assert await loop.sock_recv(client, 1) == b""
