"""Client handshake: a client's connection over TLS, from when it is accepted to when it can be read.

    socket --accepted--> ClientHandshake --begun--> TLS --over--> HotProtocol, on a transport of its own
                `-- one of the crowd's from its first moment: of too many at once those that came last wait

A server that is given a context makes a protocol's connection when the handshake is over, and nobody knows of it
before: 4,000 that never ended theirs took 2 GB. So what listens is plain, and TLS is begun here.

Source: asyncio of Python 3.11 and uvloop 0.23, start_tls(): what comes before its protocol is connected is kept.
"""

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Final

import uvicorn
from uvicorn.server import ServerState

from pdgate.gateway.front import limits
from pdgate.gateway.front.hot_protocol import HotProtocol

HELLO_BYTES: Final = 4 << 10
"""Read of a connection whose handshake has not begun; the rest stays with the kernel."""


class Knock(asyncio.BufferedProtocol):
    """What comes before the handshake has begun: one read. uvloop cannot be kept from it.

    Attributes:
        read: What came.
    """

    def __init__(self, transport: Any, on_lost: Callable[[], None]) -> None:
        self.read = b""
        self._transport = transport
        self._on_lost = on_lost
        self._buffer = bytearray()

    def get_buffer(self, sizehint: int) -> bytearray:
        self._buffer = bytearray(HELLO_BYTES)
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._transport.pause_reading()
        self.read, self._buffer = bytes(self._buffer[:nbytes]), bytearray()

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost()


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
        self._accepted_at = 0.0
        self._is_over = False
        self._knock: Knock | None = None
        self._server_ends = False
        self._early = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._connections.add(self)  # type: ignore[arg-type]
        self._accepted_at = self._loop.time()
        self._crowd.greet(self, self._loop)
        if self._steps is None:
            self._knock = Knock(transport, self._end)
            transport.set_protocol(self._knock)

    def begin(self) -> bool:
        left = self._accepted_at + limits.HANDSHAKE_SECONDS - self._loop.time()
        if left <= 0 or self._transport.is_closing():
            self.cut()
            return False
        self._steps = self._loop.start_tls(
            self._transport,
            self,
            self._tls,
            server_side=True,
            ssl_handshake_timeout=left,
            ssl_shutdown_timeout=limits.LINGER_SECONDS,
        )
        # No task: its first step would come a turn of the loop later, and uvloop reads the socket before that.
        self._steps.send(None).add_done_callback(self._over)
        if self._knock is not None and self._knock.read:
            # TLS is connected in the next turn, and reads of itself after that.
            self._loop.call_soon(self._bring, self._knock.read)
        self._knock = None
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def data_received(self, data: bytes) -> None:
        """What came with the last of the handshake: asyncio hands it on before it says that this is over."""
        self._early += data

    def cut(self) -> None:
        self._end()
        self._transport.abort()

    def shutdown(self) -> None:
        """The server ends; see HotProtocol."""
        self._server_ends = True
        self._loop.call_later(limits.FAREWELL_SECONDS, self._give_up)

    def _over(self, connected: "asyncio.Future[None]") -> None:
        self._end()
        steps, self._steps = self._steps, None
        assert steps is not None
        if connected.cancelled() or connected.exception() is not None:
            # No TLS, too long or too late; or the server is gone. Raised here, the error would know this frame, and the
            # frame the error: until Python looks for such circles, TLS would keep its 400 KB.
            steps.close()
            return
        try:
            steps.send(None)
        except StopIteration as end:
            secure = end.value
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

    def _bring(self, read: bytes) -> None:
        tls = self._transport.get_protocol()
        if self._transport.is_closing():
            return
        tls.get_buffer(len(read))[: len(read)] = read
        tls.buffer_updated(len(read))

    def _end(self) -> None:
        self._crowd.greeted(self, self._loop)
        self._connections.discard(self)
        self._is_over = True

    def _give_up(self) -> None:
        if not self._is_over:
            self.cut()
