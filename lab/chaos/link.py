"""Link: two connections and the bytes between them; the gateway's, and one of our own to the engine.

    gateway  --asks-->  near | Passage | far  --asks-->  engine
             <-answers-      |         |      <-answers-

The engine is dialled when the gateway has said something, as what it says decides whether it
is disturbed. One exchange is a request and its answer; the next one begins when the gateway
speaks after the engine has. (HTTP/1.1 without pipelining, which gateways do not use.)

Whatever ends, ends both sides, unless the passage has other plans.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Protocol, cast

from pdgate.lab.chaos.passage import ChaosPassage

DIALLING = "dialling"
OTHER_IS_SLOW = "the other side is slow"

# On, and for no seconds: closing sends RST.
_LINGER_NOT = struct.pack("ii", 1, 0)


class LinkOwner(Protocol):
    """What a link needs of its proxy."""

    async def dial(self, far: "Side") -> None:
        """Raises OSError."""

    def passage(self, link: "ChaosLink", first: bytes) -> ChaosPassage:
        """How the exchange that begins with these bytes crosses."""

    def ended(self, link: "ChaosLink") -> None: ...


class Side(asyncio.Protocol):
    """One of the two connections. Reading stops while any holder holds it."""

    def __init__(self, hears: Callable[[bytes], None], left: Callable[[], None]) -> None:
        self.other: Side | None = None
        self.gone = False
        self._hears = hears
        self._left = left
        self._holds: set[str] = set()
        self._unwanted = False
        self._transport: asyncio.Transport | None = None

    @property
    def made(self) -> bool:
        return self._transport is not None

    def send(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def hold(self, why: str) -> None:
        self._holds.add(why)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def release(self, why: str) -> None:
        self._holds.discard(why)
        if not self._holds and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """What was sent still goes out, then FIN."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Abort a link, also one that has been accepted and is not made yet."""
        self._unwanted = True
        if self._transport is not None:
            self._transport.abort()

    def reset(self) -> None:
        """RST, also if the kernel would have said FIN."""
        if self._transport is not None and not self._transport.is_closing():
            plug: socket.socket = self._transport.get_extra_info("socket")
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
            self._transport.abort()

    # asyncio calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._unwanted:
            self._transport.abort()
        elif self._holds:
            self._transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        self._hears(data)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.hold(OTHER_IS_SLOW)

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.release(OTHER_IS_SLOW)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        self._left()


class ChaosLink:
    """
    Attributes:
        number: Given by the owner when the link is counted; 0 before.
        near: The gateway's connection; the factory of a listening socket returns it.
        far: The engine's; it stands when `dial` has returned.
        closed: Done when both are gone.
    """

    def __init__(self, owner: LinkOwner, loop: asyncio.AbstractEventLoop) -> None:
        self.number = 0
        self.near = Side(self._asks, self._near_left)
        self.far = Side(self._answers, self._far_left)
        self.near.other, self.far.other = self.far, self.near
        self.closed: asyncio.Future[None] = loop.create_future()
        self._owner = owner
        self._loop = loop
        self._passage: ChaosPassage | None = None
        self._answered = False
        self._dialling: asyncio.Task[None] | None = None
        self._first_words: list[bytes] = []
        self._stands = False

    async def end(self) -> None:
        """Ends both sides at once; they are gone when it returns."""
        self.near.abort()
        if self._dialling is not None:
            self._dialling.cancel()
            await asyncio.wait((self._dialling,))
            # Cancelled before its first step, it has not even said that there is no other side.
            self.far.gone = self.far.gone or not self.far.made
            self._end()
        self.far.abort()
        await self.closed

    def reset(self) -> None:
        """The gateway gets RST; the engine, if it was dialled, sees us leave."""
        self.near.reset()

    def close(self) -> None:
        """What is on its way to the gateway still arrives."""
        self.near.close()

    def _asks(self, data: bytes) -> None:
        if self._passage is None or (self._answered and not self._passage.final):
            if self._passage is not None:
                self._passage.over()
            self._answered = False
            self._passage = self._owner.passage(self, data)
            self._passage.begins()
        if self._passage.final and not self._stands:
            return
        if self._stands:
            self._passage.asks(data)
            return
        self._first_words.append(data)
        self.near.hold(DIALLING)
        if self._dialling is None:
            self._dialling = self._loop.create_task(self._dial())

    async def _dial(self) -> None:
        try:
            await self._owner.dial(self.far)
        except OSError:
            # The owner has noted it; a gateway cannot be refused any more, so it is reset.
            self.near.reset()
        finally:
            self._stands = self.far.made
            # One that was made tells of its own end.
            self.far.gone = self.far.gone or not self.far.made
            self._end()
        if self.near.gone:
            self.far.abort()
        elif self._stands:
            assert self._passage is not None
            for data in self._first_words:
                self._passage.asks(data)
            self._first_words = []
            self.near.release(DIALLING)

    def _answers(self, data: bytes) -> None:
        self._answered = True
        if self._passage is not None:
            self._passage.answers(data)

    def _near_left(self) -> None:
        if self._passage is not None:
            self._passage.over()
        if self._stands:
            self.far.abort()
        elif self._dialling is None:
            self.far.gone = True
        self._end()

    def _far_left(self) -> None:
        if self._passage is None or not self._passage.hides_end:
            self.near.close()
        self._end()

    def _end(self) -> None:
        if self.near.gone and self.far.gone and not self.closed.done():
            self.closed.set_result(None)
            self._owner.ended(self)
