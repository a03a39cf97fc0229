"""ZmtpListener: what PUSH and DEALER sockets of ZeroMQ send, heard within bounds.

    they   greeting, READY, message, message, ...    -->  heard(peer, parts), a message at a time
    we     greeting, READY, a PONG for each PING; and what `peer.say` is given

Addresses are looked at before a byte is read; connections are MOST_AT_ONCE; all of them together have MOST_FRAMES in each
FRAMES_SECONDS, in turns with all else on the loop, and one `MessageRoom` for what is large.
A peer that does not read its answers is not heard until it does, and ended if it never does.
"""

import asyncio
import secrets
import socket
from collections.abc import Callable, Sequence
from typing import Final

from pdgate.cluster.accepting import stop_accepting
from pdgate.cluster.networks import Allowed
from pdgate.cluster.zmtp import wire
from pdgate.cluster.zmtp.wire import NULL, EndedConnection, MessageRoom, RefusalReason, Wire

MOST_AT_ONCE: Final = 1024
MOST_FRAMES: Final = 100
FRAMES_SECONDS: Final = 0.01
"""Together 10,000 a second, some 15 % of a core."""
BUFFER_BYTES: Final = 16 << 10
"""Of a connection. The kernel takes twice as much."""


class ZmtpPeer:
    """
    Attributes:
        identity: That its socket has, or one of its own.
    """

    def __init__(self, wire: Wire, identity: bytes) -> None:
        # As of a ROUTER: the first byte of one that it gives is 0.
        self.identity = identity or b"\0" + secrets.token_bytes(8)
        self._wire = wire

    def may_send(self, most_bytes: int) -> None:
        """Of each message that comes from now on."""
        self._wire.most_bytes = most_bytes

    def say(self, parts: Sequence[bytes]) -> None:
        """An answer to what was heard just now."""
        self._wire.send(parts)


class ZmtpListener:
    """
    Attributes:
        port: That it has.
    """

    def __init__(
        self,
        host: str,
        port: int,
        kind: str,
        allowed: Allowed,
        most_bytes: int,
        heard: Callable[[ZmtpPeer, list[bytes]], None],
        refused: Callable[[RefusalReason], None],
    ) -> None:
        """Binds at once. `kind`: the socket type that peers expect; `most_bytes`: of a message. Raises OSError."""
        self._sock = _bound(host, port)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        self.port: int = self._sock.getsockname()[1]
        self._kind = kind
        self._allowed = allowed
        self._most_bytes = most_bytes
        self._heard = heard
        self._refused = refused
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = MessageRoom()
        self._turns = asyncio.Lock()
        self._frames = 0
        self._since = 0.0

    async def run(self) -> None:
        """Run until cancelled; may be run again then."""
        # The server closes its socket when it ends.
        server = await asyncio.start_server(
            self._accepted, sock=self._sock.dup(), limit=BUFFER_BYTES // 2
        )
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await stop_accepting(server)
            for writer in self._open:
                writer.transport.abort()
            self._open.clear()

    def close(self) -> None:
        self._sock.close()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Before its task runs: one that is cancelled before that would leave the connection open.
        self._open.add(writer)
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._talk(reader, writer)
        except EndedConnection as end:
            self._refused(end.why)
        except (OSError, EOFError):
            # It has left, or its network has.
            pass
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Raises EndedConnection, OSError, EOFError."""
        # One that has left by now has no name.
        host = (writer.get_extra_info("peername") or ("",))[0]
        if host not in self._allowed:
            raise EndedConnection(RefusalReason.STRANGER)
        if len(self._open) > MOST_AT_ONCE:
            raise EndedConnection(RefusalReason.TOO_MANY)
        # A host that is gone says nothing any more, and would have its place for ever.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        there = Wire(reader, writer, self._most_bytes, self._turn, self._room)
        try:
            async with asyncio.timeout(wire.HANDSHAKE_SECONDS):
                await there.greet(NULL)
                said = await there.ready(self._kind)
        except (TimeoutError, EOFError):
            raise EndedConnection(RefusalReason.MALFORMED) from None
        peer = ZmtpPeer(there, said.get(b"identity", b""))
        while True:
            message = await there.receive()
            self._heard(peer, message)
            await there.drained()

    async def _turn(self) -> None:
        """All connections share what there is."""
        loop = asyncio.get_running_loop()
        async with self._turns:
            now = loop.time()
            if self._frames >= MOST_FRAMES and now < self._since + FRAMES_SECONDS:
                await asyncio.sleep(self._since + FRAMES_SECONDS - now)
                now = loop.time()
            if now >= self._since + FRAMES_SECONDS:
                self._since, self._frames = now, 0
            self._frames += 1
            await asyncio.sleep(0)


def _bound(host: str, port: int) -> socket.socket:
    if host in ("", "::") and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(
        (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
    )
