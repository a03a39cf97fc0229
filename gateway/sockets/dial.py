"""Dialled sockets: the WebSocket that the gateway opens to an engine, and what the engine says if it will not.

    dial() --> (SocketWire, the subprotocol that the engine chose)
           --> EngineRefused, EngineFailed, EngineTooSlow, EngineBusy; EngineRejected: a 4xx, whose body is the client's

No extension is offered: what engines say is text that is short, and a compressed message could be any length.

Source: RFC 6455, section 4.1; wsproto 1.3, handshake.py.
"""

import asyncio
import re
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final
from urllib.parse import urlsplit

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, Event, RejectConnection, RejectData, Request
from wsproto.utilities import RemoteProtocolError

from pdgate.gateway.sockets.wire import SocketWire
from pdgate.gateway.turns import ParseTurns
from pdgate.gateway.upstream.failures import failure, naming
from pdgate.gateway.upstream.pool import RANK, UrlTarget
from pdgate.gateway.upstream.shortage import RETRY_AFTER_SECONDS, is_ours
from pdgate.protocols.call import Headers
from pdgate.protocols.errors import (
    EngineFailed,
    EngineRefused,
    EngineTooSlow,
    GatewayShort,
)
from pdgate.protocols.instance import Instance

MOST_REFUSAL_BYTES: Final = 64 << 10
_is_value: Final = re.compile(rb"(?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?").fullmatch
"""Of a header; wsproto refuses to write any other (RFC 9110, section 5.5)."""


@dataclass(frozen=True, slots=True)
class Dialled:
    """
    Attributes:
        subprotocol: What the engine chose of those that were offered; empty for none.
    """

    wire: SocketWire
    subprotocol: str


@dataclass(frozen=True, slots=True)
class SocketRequest:
    """
    Attributes:
        path: With its query.
        headers: Besides those of the handshake; names in lower case.
        subprotocols: That the client speaks.
    """

    path: str
    headers: Headers
    subprotocols: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class SocketDialer:
    """
    Attributes:
        tls: For https URLs; None for the system's certificates.
        server_name: In the engines' certificates, where it is not the host of their URL.
        authorization: Value of that header; empty for none of the gateway's own.
        turns: Of all connections to engines.
    """

    tls: ssl.SSLContext | None = None
    server_name: str = ""
    authorization: str = ""
    turns: ParseTurns = field(default_factory=ParseTurns)

    async def dial(
        self,
        engine: Instance,
        asked: SocketRequest,
        seconds: float | None,
        weigh: Callable[[int], None],
    ) -> Dialled:
        """Raises GatewayError."""
        named = naming(engine)
        try:
            target = UrlTarget(engine.url)
        except ValueError as error:
            message = f"{named} has no address that can be used"
            raise EngineRefused(message, at=engine.id) from error
        wire = SocketWire(WSConnection(ConnectionType.CLIENT), self.turns, weigh)
        try:
            async with asyncio.timeout(seconds):
                await self._connect(wire, target, engine)
                await wire.send(self._request(target, engine, asked))
                return Dialled(wire, await _accepted(wire, engine))
        except TimeoutError as error:
            wire.abort()
            raise EngineTooSlow(f"{named} did not open a socket in time", at=engine.id) from error
        except BaseException:
            wire.abort()
            raise

    async def _connect(self, wire: SocketWire, target: UrlTarget, engine: Instance) -> None:
        tls = (self.tls or _usual_authorities()) if target.secure else None
        name = (self.server_name or target.host) if target.secure else None
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(
                lambda: wire, target.host, target.port, ssl=tls, server_hostname=name
            )
        # UnicodeError: a host name that IDNA cannot encode.
        except (OSError, UnicodeError) as error:
            if is_ours(error):
                raise GatewayShort(
                    "the gateway has no socket to spare", retry_after_seconds=RETRY_AFTER_SECONDS
                ) from error
            raise EngineRefused(f"{naming(engine)} cannot be reached", at=engine.id) from error

    def _request(self, target: UrlTarget, engine: Instance, asked: SocketRequest) -> Request:
        headers = [one for one in asked.headers if _is_value(one[1])]
        if self.authorization:
            headers = [one for one in headers if one[0] != b"authorization"]
            headers.append((b"authorization", self.authorization.encode("ascii")))
        if engine.dp_rank is not None:
            headers = [one for one in headers if one[0] != RANK]
            headers.append((RANK, b"%d" % engine.dp_rank))
        parts = urlsplit(engine.url)
        return Request(
            host=parts.netloc.rpartition("@")[2],
            target=parts.path.rstrip("/") + asked.path,
            extra_headers=headers,
            subprotocols=list(asked.subprotocols),
        )


async def _accepted(wire: SocketWire, engine: Instance) -> str:
    """The subprotocol. Raises GatewayError."""
    try:
        event = await wire.receive()
        if isinstance(event, AcceptConnection):
            return event.subprotocol or ""
        if isinstance(event, RejectConnection):
            # Only what is wrong with a request is said to the client.
            wanted = event.has_body and 400 <= event.status_code < 500
            body = await _body(wire) if wanted else b""
            headers = [(name.lower(), bytes(said)) for name, said in event.headers]
            raise failure(event.status_code, headers, body, engine)
    except (RemoteProtocolError, ValueError) as error:
        message = f"{naming(engine)} does not speak WebSocket there"
        raise EngineFailed(message, at=engine.id) from error
    raise EngineFailed(f"{naming(engine)} broke off", at=engine.id)


async def _body(wire: SocketWire) -> bytes:
    body = bytearray()
    while len(body) <= MOST_REFUSAL_BYTES:
        event: Event = await wire.receive()
        if not isinstance(event, RejectData):
            break
        body += event.data
        if event.body_finished:
            break
    return bytes(body[:MOST_REFUSAL_BYTES])


@cache
def _usual_authorities() -> ssl.SSLContext:
    """Read once: reading them takes longer than a handshake."""
    return ssl.create_default_context()
