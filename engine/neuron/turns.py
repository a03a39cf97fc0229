"""Turns of lookups when not all can succeed: the oldest asker's is first. Pure.

A lookup that fails is asked again, each asker in a rhythm of its own. So a place that
becomes free is kept for the asker that waits for the longest, unless it has stopped asking: a dead
asker must hold up no other. The reference keeps its tasks on a heap, where newcomers overtake.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

STALE_SECONDS: Final = 1.0
"""No living asker is silent for so long between two lookups (lookups.LONGEST_SECONDS)."""


class NeuronTurns:
    """Times are of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._asked: OrderedDict[Hashable, float] = OrderedDict()
        """Who waits, oldest first -> when they asked last."""

    def __len__(self) -> int:
        return len(self._asked)

    def ask(self, who: Hashable, places: int, now: float) -> bool:
        """Whether `who`, whose request is ready, gets one of the free places now."""
        for other, asked in list(self._asked.items()):
            if asked + STALE_SECONDS < now:
                del self._asked[other]
        # An old place in the queue stays; a newcomer's is at the end.
        self._asked[who] = now
        ahead = list(self._asked).index(who)
        if ahead >= places:
            return False
        del self._asked[who]
        return True

    def leave(self, who: Hashable) -> None:
        self._asked.pop(who, None)
