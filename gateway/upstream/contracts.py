"""Contracts between the parts of the client: what each needs of the next.

HttpUpstream --Opener--> Exchange --Connections--> Pool --Home--> Connection --Line--> Exchange
"""

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Protocol

from pdgate.gateway.deadlines import Deadlines
from pdgate.gateway.turns import ParseTurns

if TYPE_CHECKING:
    from pdgate.gateway.upstream.connection import UpstreamConnection
    from pdgate.gateway.upstream.exchange import Exchange


class StaleConnection(Exception):
    """A connection that had served before died without a byte of the answer.

    The engine has closed it while we sent, or read the request and died, so what is sent again on a fresh one
    may be done twice. What must not be is not sent on such a connection (`Call.may_be_repeated`).
    """


class Connections(Protocol):
    """Those to one URL; see `pool.py`."""

    def send(self, exchange: "Exchange") -> bool:
        """Sends it on one that is free; False if there is none, and nothing is sent."""


class Opener(Protocol):
    """What all exchanges of a client share; see `client.py`.

    Attributes:
        max_reply_bytes: Of an answer that is read here.
        memory: Of answers that are held; None for no bound.
    """

    loop: asyncio.AbstractEventLoop
    deadlines: Deadlines
    max_reply_bytes: int
    memory: "AnswerMemory | None"

    async def on_new(self, exchange: "Exchange") -> None:
        """Sends it on a connection that is opened for it. Raises EngineRefused."""


class ExchangeLine(Protocol):
    """What an exchange needs of its connection."""

    def abort(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class AnswerMemory(Protocol):
    """What all answers of this process may hold together, beside the bodies of calls."""

    def take(self, more_bytes: int) -> bool:
        """Whether there is room for so much more; if so, it is taken."""

    def give_back(self, bytes_: int) -> None: ...


class Home(Protocol):
    """Where a connection goes when it is free, and the listener of its end; see `pool.py`."""

    idle: deque["UpstreamConnection"]
    watches_idle: bool
    turns: ParseTurns

    def made(self, connection: "UpstreamConnection") -> None: ...
    def watch_idle(self) -> None: ...
    def lost(self, connection: "UpstreamConnection") -> None: ...
