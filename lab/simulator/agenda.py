"""Agenda of virtual time: what happens next, and when it is.

What is planned for the same moment happens in the order in which it was planned, so a run is
the same each time.
"""

from collections.abc import Callable
from heapq import heappop, heappush


class Agenda:
    """
    Attributes:
        now: Seconds since the simulation began.
    """

    __slots__ = ("_count", "_heap", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def clock(self) -> float:
        """Clock for parts that want a function, as they get `time.monotonic` otherwise."""
        return self.now

    def at(self, time: float, act: Callable[[], None]) -> None:
        """Have `act` done at that time, or now if it is past."""
        self._count += 1
        heappush(self._heap, (max(time, self.now), self._count, act))

    def run(self) -> None:
        """Run until nothing is left to happen."""
        heap = self._heap
        while heap:
            self.now, _, act = heappop(heap)
            act()
