"""Engines and sessions for the tests of realtime: the engine's end is the test's."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from wsproto.events import AcceptConnection

from pdgate.gateway.config.api_keys import ApiKeyEntry
from pdgate.gateway.security.keys import hash_of
from pdgate.protocols.instance import Role
from tests.support.fleet import Engine, Gateway, gateway_of
from tests.support.raw_server import Peer
from tests.support.sockets import SocketPeer, dialled

PATH = "/v1/realtime"


class SocketEngine(Engine):
    """A plain engine that leaves each session to the test, until its `closed` is set."""

    def __init__(self, *models: str) -> None:
        self.sessions: asyncio.Queue[SocketPeer] = asyncio.Queue()
        super().__init__(Role.PLAIN, self._session, *models)

    async def _session(self, peer: Peer) -> None:
        session = await SocketPeer.accepting(peer)
        self.sessions.put_nowait(session)
        await session.closed.wait()
        await peer.close()


def key_of(key: str, **limits: Any) -> ApiKeyEntry:
    return ApiKeyEntry(name=f"of-{key}", sha256=hash_of(key.encode()), **limits)


@asynccontextmanager
async def open_session(**settings: Any) -> AsyncIterator[tuple[Gateway, SocketPeer, SocketPeer]]:
    """Gateway, client and engine of a session."""
    engine = SocketEngine()
    async with gateway_of(engine, **settings) as gateway:
        client = await dialled(gateway.port, f"{PATH}?model=m")
        assert isinstance(await client.hear(), AcceptConnection)
        there = await engine.sessions.get()
        try:
            yield gateway, client, there
        finally:
            client.abort()
            there.closed.set()
