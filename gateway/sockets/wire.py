"""Socket wire: one WebSocket connection whose frames are asked for, one after the other.

    socket --data_received--> unread --receive()--> wsproto --> events, each as far as it has come
    socket <--------------------------- send() <-- one event; returns when the other end reads on

Pieces of a message are handed on as they come, so a message is never held here, however long it is.
What is unread is a read of the socket and HIGH_WATER_BYTES at most: beyond, the socket is not read.

Frames may be six bytes long, and each takes 20 us to read and to write again. So a slice is read at
a time, a small one where it may hold many frames, in turn with other connections (gateway/turns.py).

Source: RFC 6455; wsproto 1.3, connection.py, frame_protocol.py.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from typing import Final, Protocol, cast

from wsproto.connection import ConnectionState
from wsproto.events import CloseConnection, Event
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError

from pdgate.gateway.turns import ParseTurns

HIGH_WATER_BYTES: Final = 32 << 10
SLICE_BYTES: Final = 2 << 10
LONG_SLICE_BYTES: Final = 8 << 10
"""Where the slice before it held few frames."""

FEW: Final = 2
MOST_IN_A_ROW: Final = 256
"""Events that are handed on before others have a turn: 5 ms."""

MOST_FAREWELLS: Final = 256
"""Slices that are read of an end that has been told goodbye: 2 MiB."""

CLOSE_SECONDS: Final = 2.0
"""For the other end to read what is under way, and to say goodbye."""


class Machine(Protocol):
    """wsproto's state of a connection, with its handshake (WSConnection) or without (Connection)."""

    @property
    def state(self) -> ConnectionState: ...
    def send(self, event: Event) -> bytes: ...
    def receive_data(self, data: bytes | None) -> None: ...
    def events(self) -> Generator[Event, None, None]: ...


class SocketWire(asyncio.Protocol):
    """
    Attributes:
        transport: Of its socket, once it is `opened`.
        lost: The connection is gone; what came before may be unread still.
        weigh: Told of each change of what is unread, in bytes.
        on_lost: Called once, when the connection is gone.
        broken: What the other end did that is no WebSocket; empty for nothing.
        passes_pings: The other end hears pings, and answers them itself.
        turns: Of all connections that have something to be parsed.
    """

    transport: asyncio.Transport
    passes_pings = True

    def __init__(
        self, machine: Machine, turns: ParseTurns, weigh: Callable[[int], None] = lambda _: None
    ) -> None:
        self.machine = machine
        self.turns = turns
        self._turn: asyncio.Future[None] | None = None
        self.weigh = weigh
        self.opened = self.lost = False
        self.on_lost: Callable[[], None] = lambda: None
        self.broken = ""
        self._unread = bytearray()
        self._events: deque[Event] = deque()
        self._slice_bytes = SLICE_BYTES
        self._given = 0
        self._reading_paused = False
        self._changed = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed = asyncio.Event()

    # What the transport tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit asyncio's classes.
        self.transport = cast(asyncio.Transport, transport)
        self.opened = True

    def data_received(self, data: bytes) -> None:
        self._unread += data
        self.weigh(len(data))
        if len(self._unread) > HIGH_WATER_BYTES and not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()
        self._changed.set()

    def eof_received(self) -> None:
        """An end that says no more hears no more: the transport closes."""

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._changed.set()
        self._writable.set()
        self._closed.set()
        self.on_lost()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # What is asked of it.

    async def receive(self) -> Event:
        """The next event. An end without a word, or with what is no WebSocket, is a CloseConnection as well:
        of code 1006, or with `broken` saying why.

        Raises wsproto's RemoteProtocolError, or ValueError, while the handshake is not over.
        """
        self._given += 1
        if self._given % MOST_IN_A_ROW == 0:
            await asyncio.sleep(0)
        while not self._events:
            if self._unread:
                loop = asyncio.get_running_loop()
                self._turn = turn = loop.create_future()
                self.turns.ask(self, loop)
                await turn
            elif self.lost:
                return CloseConnection(code=CloseReason.ABNORMAL_CLOSURE)
            else:
                self._changed.clear()
                await self._changed.wait()
        return self._events.popleft()

    async def send(self, event: Event) -> None:
        """Returns when there is room for the next. An event that comes too late is dropped."""
        if self.lost:
            return
        try:
            data = self.machine.send(event)
        except LocalProtocolError:
            # Behind a close of either end.
            return
        if data:
            self.transport.write(bytes(data))
        await self._writable.wait()

    async def close(self, code: int | None, reason: str) -> None:
        """Send a close frame, and wait CLOSE_SECONDS for the other end to read it and to answer."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                if self.machine.state in (ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING):
                    await self.send(_goodbye(code, reason))
                left = MOST_FAREWELLS
                while self.machine.state is ConnectionState.LOCAL_CLOSING and not (
                    self.lost or self.broken
                ):
                    # Of what was under way before it hears of the end.
                    left -= 1
                    if not left:
                        return
                    self._events.clear()
                    await self.receive()
                if not self.lost:
                    self.transport.close()
                await self._closed.wait()
        except TimeoutError:
            pass
        finally:
            self.abort()

    def abort(self) -> None:
        self._forget_unread()
        self._events.clear()
        if self.opened and not self.lost:
            self.transport.abort()

    # What the turns ask.

    def take_turn(self) -> None:
        """Reads one slice; the task that waits for it may have been cancelled meanwhile."""
        turn, self._turn = self._turn, None
        if turn is None or turn.done():
            return
        try:
            if self._unread:
                self._read_slice()
        except Exception as error:  # noqa: BLE001
            turn.set_exception(error)
        else:
            turn.set_result(None)

    # How.

    def _read_slice(self) -> None:
        slice_ = bytes(self._unread[: self._slice_bytes])
        del self._unread[: len(slice_)]
        self.weigh(-len(slice_))
        if (
            self.machine.state in (ConnectionState.CLOSED, ConnectionState.REMOTE_CLOSING)
            or self.broken
        ):
            # Behind a goodbye nothing is said.
            self._forget_unread()
            return
        self.machine.receive_data(slice_)
        found = list(self.machine.events())
        for event in found:
            if isinstance(event, CloseConnection) and self.machine.state is ConnectionState.OPEN:
                # wsproto's way to say that what came is no frame.
                self.broken = event.reason or "no WebSocket frame"
        self._events += found
        self._slice_bytes = LONG_SLICE_BYTES if len(found) <= FEW else SLICE_BYTES
        if self._reading_paused and len(self._unread) <= HIGH_WATER_BYTES // 2 and not self.lost:
            self._reading_paused = False
            self.transport.resume_reading()

    def _forget_unread(self) -> None:
        self.weigh(-len(self._unread))
        self._unread.clear()


def _goodbye(code: int | None, reason: str) -> CloseConnection:
    if code is None or code == CloseReason.NO_STATUS_RCVD:
        return CloseConnection(code=CloseReason.NO_STATUS_RCVD)
    return CloseConnection(code=code, reason=reason)
