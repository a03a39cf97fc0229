"""Unseen reads: prompts of which nothing shows when they have been read, as their answers come whole.

    leg sent --> seconds that the engine was expected to read --> the prompt counts as read

Prefill answers when it has read, and a stream begins then. A whole answer comes with its last token: that of an engine
which reads and answers, and decode's where decode itself asks prefill (Delegation). If the prompt counted as unread until
then, engines would seem to read for as long as they answer, and no call would be sent there.

One timer of the event loop for all of them. Calls that are over before their time stay until it comes, which does nothing then.
"""

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from pdgate.protocols.apis import Kind
from pdgate.protocols.call import Call

_GENERATES: Final = Kind.GENERATES


def comes_whole(call: Call) -> bool:
    """Whether its answer is there only when all of it has been made. Vectors are when the prompt has been read."""
    return not call.streams and (call.api is None or call.api.kind is _GENERATES)


class UnseenReads:
    """Those of one event loop."""

    def __init__(self) -> None:
        # Of equals, the number keeps functions from being compared.
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, seconds: float, read: Callable[[], None]) -> None:
        """Call `read` in so many seconds."""
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        self._number += 1
        heappush(self._due, (due, self._number, read))
        if self._due[0][1] == self._number:
            self._wind(loop, due)

    def _wind(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(due, self._look)

    def _look(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        try:
            while self._due and self._due[0][0] <= now:
                _, _, read = heappop(self._due)
                read()
        finally:
            # Also when one of them failed: the others are not to count as unread for ever.
            if self._due:
                self._wind(loop, self._due[0][0])
