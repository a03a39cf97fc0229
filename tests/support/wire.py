"""A connection without a network: fed by hand, its transport and pool observed."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from pdgate.forwarders.base import Leg
from pdgate.gateway.deadlines import Deadlines
from pdgate.gateway.turns import ParseTurns, Taker
from pdgate.gateway.upstream.connection import UpstreamConnection
from pdgate.gateway.upstream.contracts import AnswerMemory
from pdgate.gateway.upstream.exchange import Exchange
from pdgate.protocols.call import Call
from pdgate.protocols.errors import GatewayError
from pdgate.protocols.instance import Instance, Role

LEG = Leg(Instance("p0", "http://p0", Role.PREFILL, "vllm-nixl"), "/v1/completions", {})
CALL = Call("id", "attempt", "/v1/completions", {})


class TurnsAtOnce(ParseTurns):
    """Turns that are had when they are asked for, so that what was fed has been parsed."""

    def ask(self, taker: Taker, loop: asyncio.AbstractEventLoop) -> None:
        self._waiting.append(taker)
        if not self._giving:
            self._giving = True
            while self._waiting:
                self._waiting.popleft().take_turn()
            self._giving = False


@dataclass
class Wire:
    """The transport and the pool of a connection."""

    turns: ParseTurns = field(default_factory=TurnsAtOnce)
    written: list[bytes] = field(default_factory=list)
    unsent: int = 0
    closing: bool = False
    reading: bool = True
    idle: deque[UpstreamConnection] = field(default_factory=deque)
    watches_idle: bool = True

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def writelines(self, pieces: list[bytes]) -> None:
        self.written.extend(pieces)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.closing = True

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def made(self, connection: UpstreamConnection) -> None: ...

    @property
    def given_back(self) -> int:
        return len(self.idle)

    def watch_idle(self) -> None: ...

    def lost(self, connection: UpstreamConnection) -> None: ...


@dataclass
class NoOpener:
    """What is sent here is sent by hand."""

    loop: asyncio.AbstractEventLoop
    deadlines: Deadlines
    memory: AnswerMemory | None
    max_reply_bytes: int = 64 << 20

    async def on_new(self, exchange: Exchange) -> None:
        raise AssertionError("it is sent already")


@dataclass
class Result:
    """A sink; `on_data` is what a test wants to happen with each chunk."""

    body: bytes = b""
    framed: list[bytes] = field(default_factory=list)
    on_data: Callable[[bytes], object] = len
    ends: list[GatewayError | None] = field(default_factory=list)

    def data(self, chunk: bytes, framed: bytes = b"") -> None:
        assert not self.ends
        self.body += chunk
        self.framed.append(framed)
        self.on_data(chunk)

    def ended(self, error: GatewayError | None, last: bytes = b"") -> None:
        if last:
            self.data(last)
        self.ends.append(error)


@dataclass
class Case:
    """A connection with one exchange under way.

    Attributes:
        answers: The call whose client gets the answer; None for one that is read here.
        memory: Of answers; None for no bound.
    """

    loop: asyncio.AbstractEventLoop
    wire: Wire = field(default_factory=Wire)
    result: Result = field(default_factory=Result)
    answers: Call | None = None
    memory: AnswerMemory | None = None

    def __post_init__(self) -> None:
        self.connection = UpstreamConnection(self.wire, self.loop)
        self.connection.connection_made(cast(asyncio.Transport, self.wire))
        self.ask()

    def ask(self) -> None:
        upstream = NoOpener(self.loop, Deadlines(self.loop), self.memory)
        self.exchange = Exchange(
            LEG, self.answers or CALL, None, upstream, for_client=self.answers is not None
        )
        self.exchange.line = self.connection
        self.connection.send(self.exchange, b"head", b"body")

    def feed(self, data: bytes, cuts: list[int]) -> None:
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            if end > start and not self.wire.closing:
                self.connection.data_received(data[start:end])

    def eof(self) -> None:
        self.connection.eof_received()
        self.connection.connection_lost(None)

    def seen(self) -> tuple[object, ...]:
        self.exchange.start(self.result)
        error = self.result.ends[0] if self.result.ends else "no end"
        return (
            self.exchange.status,
            tuple(self.exchange.headers),
            self.result.body,
            str(error),
            self.wire.closing,
            self.wire.given_back,
        )
