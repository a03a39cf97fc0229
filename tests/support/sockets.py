"""WebSockets by hand, of either side, for tests: what is said on the wire is the test's to say.

engine = SocketPeer.accepting(peer)         in the script of a raw engine
client = await dialled(port, "/v1/realtime?model=m", ("authorization", "Bearer k"))
await client.say(TextMessage(data="hi")); event = await client.hear()
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)

from tests.support.raw_server import Peer
from tests.support.waiting import PATIENCE_SECONDS


class SocketPeer:
    """One end of a WebSocket."""

    def __init__(
        self, side: ConnectionType, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.ws = WSConnection(side)
        self.reader, self.writer = reader, writer
        self._events: deque[Event] = deque()
        self.closed = asyncio.Event()

    @classmethod
    async def accepting(cls, peer: Peer, subprotocol: str | None = None) -> "SocketPeer":
        """The engine's end, for a request that has come."""
        one = cls(ConnectionType.SERVER, peer._reader, peer._writer)
        one.ws.initiate_upgrade_connection(
            peer.request.headers, peer.request.line.split(b" ")[1].decode()
        )
        assert isinstance(next(iter(one.ws.events())), Request)
        await one.say(AcceptConnection(subprotocol=subprotocol))
        return one

    async def say(self, *events: Event) -> None:
        for event in events:
            self.writer.write(self.ws.send(event))
        await self.writer.drain()

    async def hear(self) -> Event:
        """The next event; a goodbye is answered. A CloseConnection of code 1006 where the other end is gone."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not self._events:
                try:
                    data = await self.reader.read(1 << 16)
                except ConnectionError:
                    data = b""
                if not data:
                    return CloseConnection(code=1006)
                self.ws.receive_data(data)
                self._events += self.ws.events()
        event = self._events.popleft()
        if isinstance(event, CloseConnection) and self.ws.state is ConnectionState.REMOTE_CLOSING:
            self.writer.write(self.ws.send(event.response()))
        return event

    async def message(self) -> str | bytes:
        """A whole one. Raises AssertionError for anything else."""
        parts: list[Any] = []
        while True:
            event = await self.hear()
            assert isinstance(event, TextMessage | BytesMessage), event
            parts.append(event.data)
            if event.message_finished:
                whole: str | bytes = parts[0][:0].join(parts)
                return whole

    async def farewell(self) -> CloseConnection:
        """What is said before it is passed over."""
        while True:
            event = await self.hear()
            if isinstance(event, CloseConnection):
                return event

    def abort(self) -> None:
        self.writer.transport.abort()

    def __del__(self) -> None:
        # A test that ends with an assertion leaves some.
        if not self.writer.is_closing():
            self.writer.transport.abort()


async def dialled(
    port: int, target: str, *headers: tuple[str, str], subprotocols: Sequence[str] = ()
) -> SocketPeer:
    """A client's end, before it has heard an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    one = SocketPeer(ConnectionType.CLIENT, reader, writer)
    extra = [(name.encode(), said.encode()) for name, said in headers]
    await one.say(
        Request(host="g", target=target, extra_headers=extra, subprotocols=list(subprotocols))
    )
    return one


async def refusal(client: SocketPeer) -> tuple[int, bytes]:
    """Status and body of the answer to a handshake."""
    event = await client.hear()
    assert isinstance(event, RejectConnection), event
    body = b""
    client.writer.close()
    while event.has_body:
        more = await client.hear()
        if not isinstance(more, RejectData):
            break
        body += more.data
        if more.body_finished:
            break
    return event.status_code, body
