"""Journal of what a proxy has seen and injected, for reports and for tests that wait for it."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from pdgate.lab.chaos import fault as faults
from pdgate.lab.chaos.fault import Fault


class FaultJournal:
    """
    Attributes:
        connections: From the gateway, health checks among them.
        numbered: Requests, or connections, that the plans counted.
        injected: Name of a fault -> how often it happened.
        missed: Name -> how often it was due, but the exchange ended first.
        unreachable: How often the engine could not be reached.
    """

    def __init__(self, tell: Callable[[str], None] | None = None) -> None:
        self.connections = 0
        self.numbered = 0
        self.injected: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()
        self.unreachable = 0
        self._tell = tell or (lambda line: None)
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def happened(self, fault: Fault, number: int) -> None:
        self.injected[faults.name(fault)] += 1
        self._tell(f"{number}: {fault}")
        due = [waiter for count, waiter in self._waiting if count <= self.injected.total()]
        for waiter in due:
            if not waiter.done():
                waiter.set_result(None)

    def did_not_happen(self, fault: Fault, number: int) -> None:
        self.missed[faults.name(fault)] += 1
        self._tell(f"{number}: {faults.name(fault)} was due, but the exchange was over first")

    def could_not_dial(self, error: OSError) -> None:
        self.unreachable += 1
        self._tell(f"the engine cannot be reached: {error}")

    async def until_injected(self, count: int) -> None:
        """Waits until so many faults, of any kind, have happened since the start."""
        if self.injected.total() >= count:
            return
        entry = (count, asyncio.get_running_loop().create_future())
        self._waiting.append(entry)
        try:
            await entry[1]
        finally:
            self._waiting.remove(entry)

    def as_json(self) -> dict[str, Any]:
        return {
            "connections": self.connections,
            "numbered": self.numbered,
            "injected": dict(self.injected),
            "missed": dict(self.missed),
            "engine_unreachable": self.unreachable,
        }
