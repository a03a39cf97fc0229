"""Ids that are good for one use: Mooncake's transfer ids.

On vLLM a second use gives wrong tokens, which then stay in decode's prefix cache (measured on
0.32.0); so here it fails the request that comes second. Both sides remember, as the second
use may reach another peer than the first.
"""

import threading
from collections import OrderedDict
from typing import Final

MAX_REMEMBERED: Final = 65_536
"""At a thousand calls a second that is a minute, twice what a lease takes."""


class Once:
    """Thread-safe."""

    def __init__(self, most: int = MAX_REMEMBERED) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._used: OrderedDict[str, None] = OrderedDict()

    def use(self, id: str) -> None:
        """Raises ValueError for one that was used before."""
        with self._lock:
            if id in self._used:
                raise ValueError(f"{id!r} was used before, and is good for one transfer only")
            self._used[id] = None
            if len(self._used) > self._most:
                self._used.popitem(last=False)
