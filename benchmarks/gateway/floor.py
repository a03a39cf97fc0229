"""floor.py PORT PREFILL DECODE: the guard's relay on uvloop, over real sockets.

The least that carries a call over two engines in this language: callbacks and parsers, nothing
that makes a call safe (benchmarks/guard/relay.py). Each client brings a connection of its own to
each engine, so that nothing is shared and nobody waits.
"""

import asyncio
import sys
from functools import partial
from urllib.parse import urlsplit

import uvloop

from benchmarks.guard.relay import Engine, Relay


class Leg(Engine):
    """A connection that is closed with its client's."""

    def hang_up(self) -> None:
        self._transport.close()


class Accepted(Relay):
    """A relay that keeps what it is sent until it has its engines."""

    def __init__(self, prefill: str, decode: str) -> None:
        self._legs = {prefill: Leg(), decode: Leg()}
        super().__init__(*self._legs.values())
        self._dialled: list[Leg] = []
        self._early: bytes | None = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._dialling = asyncio.ensure_future(self._dial())

    def data_received(self, data: bytes) -> None:
        if self._early is None:
            super().data_received(data)
        else:
            self._early += data

    async def _dial(self) -> None:
        loop = asyncio.get_running_loop()
        for url, leg in self._legs.items():
            host, _, port = urlsplit(url).netloc.partition(":")
            await loop.create_connection(partial(_itself, leg), host, int(port))
            self._dialled.append(leg)
        early, self._early = self._early, None
        if early:
            self.data_received(early)

    def connection_lost(self, exc: Exception | None) -> None:
        self._dialling.cancel()
        for leg in self._dialled:
            leg.hang_up()


def _itself(leg: Leg) -> Leg:
    return leg


async def serve(port: int, prefill: str, decode: str) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Accepted(prefill, decode), "127.0.0.1", port, backlog=2048
    )
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), sys.argv[2], sys.argv[3]))
