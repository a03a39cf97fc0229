"""Line of calls that wait for a model: their order, and how long each will wait.

The more urgent first. Among equally urgent ones, tenants take turns by prompt tokens, each
served when it has had least: one that sends many or long prompts waits behind itself, not
before others. That is start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996), without
weights. When there is no place left, the one gives way that would be served last: of the least
urgent, the newest of the tenant that has most waiting.

How long one that joins will wait: those before it, at the pace of late. That is the mean time between
two that began while others waited, of about the last REMEMBERED of them. A line that was empty says
nothing of what engines can take, so the time until its first one begins is not counted.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from pdgate.protocols.priority import ORDINARY

REMEMBERED: Final = 20


@dataclass(slots=True, eq=False)
class Place:
    """One that waits.

    Attributes:
        urgency: MOST_URGENT to LEAST_URGENT.
        tenant: Name of those that share a turn; "" is a tenant, too.
        tokens: What serving it takes of its tenant's turn.
    """

    urgency: int = ORDINARY
    tenant: str = ""
    tokens: int = 1


@dataclass(slots=True)
class _Level:
    """The equally urgent.

    Attributes:
        had: Tenant -> where its turns have come to, in tokens.
        now: Where the turn served last began; a tenant that joins begins no earlier.
    """

    tenants: dict[str, deque[Place]] = field(default_factory=dict)
    had: dict[str, int] = field(default_factory=dict)
    now: int = 0

    def add(self, place: Place) -> None:
        queue = self.tenants.get(place.tenant)
        if queue is None:
            queue = self.tenants[place.tenant] = deque()
            self.had[place.tenant] = max(self.now, self.had.get(place.tenant, 0))
        queue.append(place)

    def next_tenant(self) -> str:
        return min(self.tenants, key=self.had.__getitem__)

    def take(self) -> Place:
        tenant = self.next_tenant()
        place = self.tenants[tenant].popleft()
        self.now = self.had[tenant]
        self.had[tenant] += max(place.tokens, 1)
        self._tidy(tenant)
        return place

    def drop(self, place: Place) -> None:
        self.tenants[place.tenant].remove(place)
        self._tidy(place.tenant)

    def newest_of_the_longest(self) -> Place:
        return max(self.tenants.values(), key=len)[-1]

    def _tidy(self, tenant: str) -> None:
        """What a tenant has had is forgotten once it would not set it back."""
        if self.tenants[tenant]:
            return
        del self.tenants[tenant]
        if not self.tenants:
            # No call waits: all begin alike again.
            self.now = max(self.had.values())
        self.had = {
            name: had for name, had in self.had.items() if name in self.tenants or had > self.now
        }


class Line:
    def __init__(self) -> None:
        self._levels: dict[int, _Level] = {}
        self._waiting: set[Place] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, place: Place) -> bool:
        return place in self._waiting

    def join(self, place: Place) -> None:
        self._levels.setdefault(place.urgency, _Level()).add(place)
        self._waiting.add(place)

    def next(self) -> Place:
        """Takes the one whose turn it is. Raises LookupError if no call waits."""
        if not self._waiting:
            raise LookupError("no call waits")
        level = self._levels[min(u for u, level in self._levels.items() if level.tenants)]
        place = level.take()
        self._waiting.remove(place)
        return place

    def leave(self, place: Place) -> None:
        """It waits no more; nothing if it did not."""
        if place in self._waiting:
            self._waiting.remove(place)
            self._levels[place.urgency].drop(place)

    def gives_way(self, newcomer: Place) -> Place:
        """The call that has to leave for a newcomer to a full line: maybe the newcomer itself."""
        least = max((u for u, level in self._levels.items() if level.tenants), default=-1)
        if newcomer.urgency > least:
            return newcomer
        longest = self._levels[least].newest_of_the_longest()
        if newcomer.urgency < least:
            return longest
        of_newcomer = len(self._levels[least].tenants.get(newcomer.tenant, ()))
        of_longest = len(self._levels[least].tenants[longest.tenant])
        return longest if of_newcomer + 1 < of_longest else newcomer


class Pace:
    """Time between two beginnings, from which the wait of one that joins follows."""

    __slots__ = ("_last", "_seconds")

    def __init__(self) -> None:
        self._last: float | None = None
        self._seconds: float | None = None

    def began(self, now: float, *, others_wait: bool) -> None:
        """One that had waited began at `now`, monotonic seconds."""
        if self._last is not None:
            took = now - self._last
            known = self._seconds
            self._seconds = took if known is None else known + (took - known) / REMEMBERED
        self._last = now if others_wait else None

    def wait(self, before: int, now: float) -> float | None:
        """Seconds until one with so many before it begins; None while nothing is known."""
        if self._seconds is None:
            return None
        # No call has begun for longer than usual: then this is the pace.
        since = now - self._last if self._last is not None else 0.0
        return (before + 1) * max(self._seconds, since)
