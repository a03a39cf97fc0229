"""Attention: whether this process is watched; then every choice of engines is explained, and kept.

To explain one costs about as much as to make it, and more the more engines there are (2: 10 us, 32:
100 us), so a gateway with an admin token alone does not pay for it. What makes a picture of this process
watches it: a page, `pdgate top`, another worker on behalf of these.
"""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final

LASTS_SECONDS: Final = 10.0
"""After the last picture: a page that connects again finds no hole."""
LOOK_SECONDS: Final = 2.0


class ConsoleAttention:
    def __init__(
        self,
        begins: Callable[[], None],
        ends: Callable[[], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._begins = begins
        self._ends = ends
        self._clock = clock
        self._last: float | None = None

    def watched(self) -> None:
        """A picture is made just now."""
        if self._last is None:
            self._begins()
        self._last = self._clock()

    def look(self) -> None:
        """Ends it when none was made for LASTS_SECONDS."""
        if self._last is not None and self._clock() - self._last > LASTS_SECONDS:
            self._last = None
            self._ends()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()
