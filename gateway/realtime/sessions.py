"""Sessions of a process: all that are open, and what becomes of them when time is up.

open       the drain waits for them as for calls (gateway/lifecycle/drain.py)
look       once a second: limits of time, of all of them (relay.py)
end_all    the drain's time is over, or the server ends: a goodbye that says "going away" (1001)
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from wsproto.frame_protocol import CloseReason

from pdgate.gateway.realtime.endings import SessionEnding, SessionOutcome
from pdgate.gateway.realtime.relay import SessionRelay

LOOK_SECONDS: Final = 1.0


class Sessions:
    """
    Attributes:
        open: Sessions that have begun and not ended; also those whose engine is being asked.
        idle_seconds: Without a frame of either side, after which one is ended; None for never.
        ended: Outcome -> sessions.
        bytes: "client" or "engine" -> bytes of messages that came from there.
    """

    def __init__(self, idle_seconds: float | None) -> None:
        self.open = 0
        self.idle_seconds = idle_seconds
        self.ended: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self._relays: set[SessionRelay] = set()
        self._over = False

    @contextmanager
    def begun(self) -> Iterator[None]:
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1

    @contextmanager
    def running(self, relay: SessionRelay) -> Iterator[None]:
        self._relays.add(relay)
        if self._over:
            relay.end(DRAINED)
        try:
            yield
        finally:
            self._relays.discard(relay)

    def end_all(self) -> None:
        self._over = True
        for relay in self._relays:
            relay.end(DRAINED)

    async def run(self) -> None:
        """Looks at all of them, for as long as the gateway runs."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                now = loop.time()
                for relay in tuple(self._relays):
                    relay.look(now, self.idle_seconds)
        finally:
            # Also where the server has not waited for a drain.
            self.end_all()


DRAINED: Final = SessionEnding(
    SessionOutcome.DRAINING, CloseReason.GOING_AWAY, "the gateway is shutting down"
)
