"""Client handshake: a client's connection over TLS, from when it is accepted to when it can be read.

    socket --accepted--> Handshake --over--> HotProtocol, on a transport of its own
                `-- one of the crowd's from its first moment: the oldest of too many is cut

A server that is given a context makes a protocol's connection when the handshake is over, and nobody knows of it
before: 4,000 that never ended theirs took 2 GB. So what listens is plain, and TLS is begun here.

Source: asyncio of Python 3.11 and uvloop 0.23, start_tls(): what comes before its protocol is connected is kept.
"""

import asyncio
import ssl
from collections.abc import Coroutine
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from pdgate.gateway.front import limits
from pdgate.gateway.front.hot_protocol import HotProtocol


class ClientHandshake(asyncio.Protocol):
    """`tls` bounds how many bytes a handshake may have (gateway/security/tls.py)."""

    def __init__(
        self,
        tls: ssl.SSLContext,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._tls = tls
        self._connection = HotProtocol(config, server_state, app_state, _loop)
        self._crowd = self._connection.crowd
        self._loop = self._connection.loop
        self._connections = server_state.connections
        self._transport: Any = None
        self._steps: Coroutine[Any, Any, Any] | None = None
        self._server_ends = False
        self._early = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._connections.add(self)  # type: ignore[arg-type]
        self._steps = self._loop.start_tls(
            transport,
            self,
            self._tls,
            server_side=True,
            ssl_handshake_timeout=limits.HANDSHAKE_SECONDS,
        )
        # No task: its first step would come a turn of the loop later, and uvloop reads the socket before that.
        self._steps.send(None).add_done_callback(self._over)
        self._crowd.greet(self)

    def data_received(self, data: bytes) -> None:
        """What came with the last of the handshake: asyncio hands it on before it says that this is over."""
        self._early += data

    def cut(self) -> None:
        self._transport.abort()

    def shutdown(self) -> None:
        """The server ends; see HotProtocol."""
        self._server_ends = True
        self._loop.call_later(limits.FAREWELL_SECONDS, self._give_up)

    def _over(self, _: "asyncio.Future[None]") -> None:
        self._crowd.greeted(self)
        self._connections.discard(self)
        steps, self._steps = self._steps, None
        assert steps is not None
        try:
            steps.send(None)
        except StopIteration as end:
            secure = end.value
        except (OSError, asyncio.CancelledError):
            # No TLS, too long or too late; or the server is gone.
            return
        # One that was lost meanwhile is said to be whole.
        if secure is None or secure.is_closing():
            return
        self._connection.tcp = self._transport
        secure.set_protocol(self._connection)
        self._connection.connection_made(secure)
        if self._early:
            self._connection.data_received(self._early)
        if self._server_ends:
            self._connection.shutdown()

    def _give_up(self) -> None:
        if self._steps is not None:
            self.cut()
