"""Orderly end of an asyncio server: no connection is accepted any more, and those that are get made.

asyncio loses a connection that is accepted when its server closes before the connection is made, and with it the
socket, which stays open until it is collected (CPython 3.11, asyncio/base_events.py, Server._attach).
"""

import asyncio
from typing import Final

TURNS: Final = 4
"""Of an event loop, that an accepted connection takes until it is made; one more than it does."""


async def stop_accepting(server: asyncio.Server) -> None:
    """Close the server; its connections are closed by what serves them."""
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening.fileno())
    try:
        for _ in range(TURNS):
            await asyncio.sleep(0)
    finally:
        server.close()
