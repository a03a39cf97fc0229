"""Keepalive comments into streams that are silent, so that no proxy on the way takes them for dead.

    silences = pings.silences or pings.begin()
    silences.watch(stream, pings.seconds)       # stream.expired() is called after a silence
    ...
    silences.forget(stream)

A stream is what `Deadlines` watches; one that may be silent again has itself watched again when it
expires. Load balancers close connections that are silent for a minute or so, and an engine under load may
be longer at its next token. A comment is no event: clients skip it (WHATWG HTML, section 9.2), and PING
may go out unless an event is half out.

An event costs one attribute write; one timer looks after all streams (deadlines.py).
"""

import asyncio

from pdgate.gateway.deadlines import Deadlines

PING = b": ping\n\n"


class Pings:
    """Of one event loop.

    Attributes:
        seconds: Of a silence.
        silences: What watches the streams; None before the first one.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.silences: Deadlines | None = None

    def begin(self) -> Deadlines:
        """Not earlier: there is no loop yet where the gateway is put together."""
        self.silences = silences = Deadlines(asyncio.get_running_loop())
        return silences
