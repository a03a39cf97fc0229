"""Keepalive comments into streams that are silent, so that no proxy on the way takes them for dead.

    with pings.during(stream):      # stream.expired() is called at each silence
        ...

Load balancers close connections that are silent for a minute or so, and an engine under load may
be longer at its next token. A comment is no event: clients skip it (WHATWG HTML, section 9.2).

An event costs one attribute write; one timer looks after all streams (deadlines.py).
"""

import asyncio
from typing import Protocol

from pdgate.gateway.deadlines import Deadlines

PING = b": ping\n\n"


class Stream(Protocol):
    """
    Attributes:
        seen: Written True with each piece.
    """

    seen: bool

    def expired(self) -> None:
        """It has been silent; PING may go out, unless an event is half out."""


class Pings:
    """Of one event loop."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadlines: Deadlines | None = None

    def during(self, stream: Stream) -> "Watching":
        if self._deadlines is None:
            # Not earlier: there is no loop yet where the gateway is put together.
            self._deadlines = Deadlines(asyncio.get_running_loop())
        return Watching(stream, self._deadlines, self._seconds)


class Watching:
    """A stream as `Deadlines` sees it, inside the block: its limit begins anew each time."""

    __slots__ = ("_deadlines", "_stream", "due", "seconds")

    def __init__(self, stream: Stream, deadlines: Deadlines, seconds: float) -> None:
        self.seconds = seconds
        self.due = 0.0
        self._stream = stream
        self._deadlines = deadlines

    def __enter__(self) -> None:
        self._deadlines.watch(self, self.seconds)

    def __exit__(self, *_: object) -> None:
        self._deadlines.forget(self)

    @property
    def seen(self) -> bool:
        return self._stream.seen

    @seen.setter
    def seen(self, seen: bool) -> None:
        self._stream.seen = seen

    def expired(self) -> None:
        self._stream.expired()
        self._deadlines.watch(self, self.seconds)
