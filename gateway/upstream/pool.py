"""Connection pool of one URL.

The one that became free last is used first: it is the least likely to be stale, and the
ones that are not needed any more stay unused until the limit.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable

from pdgate.gateway.deadlines import Deadlines
from pdgate.gateway.upstream.connection import Connection
from pdgate.gateway.upstream.request import Target


class Pool:
    """
    Attributes:
        live: All connections that are open, free or not.
        seconds, seen, due: For the deadlines.
    """

    seconds = 0.0
    seen = False
    due = 0.0

    def __init__(
        self,
        target: Target,
        tls: ssl.SSLContext | None,
        server_name: str,
        keep_idle_seconds: float,
        deadlines: Deadlines,
        loop: asyncio.AbstractEventLoop,
        emptied: Callable[[], None],
    ) -> None:
        self.target = target
        self.live: set[Connection] = set()
        self._idle: deque[Connection] = deque()
        self._tls = tls
        self._server_name = (server_name or target.host) if tls else None
        self._keep_idle_seconds = keep_idle_seconds
        self._deadlines = deadlines
        self._loop = loop
        self._emptied = emptied
        self._closing = False
        self._connecting = 0
        self._watched = False

    def take(self) -> Connection | None:
        """A free connection that is young enough; None if there is none."""
        oldest = self._loop.time() - self._keep_idle_seconds
        while self._idle:
            connection = self._idle.pop()
            if connection.transport.is_closing():
                continue
            if connection.idle_since > oldest:
                return connection
            connection.abort()
        return None

    async def connect(self, limit_seconds: float | None) -> Connection:
        """A new one. Raises OSError (TimeoutError among them) or UnicodeError."""
        self._connecting += 1
        try:
            async with asyncio.timeout(limit_seconds):  # its end does not wait
                _, connection = await self._loop.create_connection(
                    lambda: Connection(self, self._loop),
                    self.target.host,
                    self.target.port,
                    ssl=self._tls,
                    server_hostname=self._server_name,
                )
        finally:
            self._connecting -= 1
            self._forget_if_empty()
        if self._closing:
            connection.abort()
            raise ConnectionAbortedError("the gateway is closing")
        return connection

    def made(self, connection: Connection) -> None:
        self.live.add(connection)

    def give(self, connection: Connection) -> None:
        """Its answer is complete, and it can take another request."""
        connection.idle_since = self._loop.time()
        self._idle.append(connection)
        if not self._watched:
            self._watch(self._keep_idle_seconds)

    def lost(self, connection: Connection) -> None:
        self.live.discard(connection)
        self._forget_if_empty()

    def close(self) -> None:
        """Closes all; an answer under way fails."""
        self._closing = True
        self._idle.clear()
        self._deadlines.forget(self)
        self._watched = False
        for connection in list(self.live):
            connection.end()

    def _forget_if_empty(self) -> None:
        if not self.live and not self._connecting:
            self._emptied()

    def expired(self) -> None:
        """The one that became free first may have been free for too long."""
        oldest = self._loop.time() - self._keep_idle_seconds
        while self._idle and (
            self._idle[0].transport.is_closing() or self._idle[0].idle_since <= oldest
        ):
            connection = self._idle.popleft()
            if not connection.transport.is_closing():
                connection.abort()
        self._watched = False
        if self._idle:
            self._watch(self._idle[0].idle_since - oldest)

    def _watch(self, seconds: float) -> None:
        """Once for all that come and go meanwhile."""
        self._watched = True
        self._deadlines.watch(self, seconds)
