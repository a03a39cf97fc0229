"""Line of calls that wait for a model: their order, and how long each will wait.

The more urgent first. Among equally urgent ones, tenants take turns by prompt tokens, each
served when it has had least: one that sends many or long prompts waits behind itself, not
before others. That is start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996), without
weights. When there is no place left, the one gives way that would be served last: of the least
urgent, the newest of the tenant that has most waiting, and first of those that are late.

Calls that are late, as they had to begin before now to be in time, go after all equally urgent ones that are
not: served in turn, they would make those late that come behind them, and under overload soon all. They take
turns among themselves. Lest they wait for as long as others come, a share of the time for which prompts are
read is theirs.

Of a tenant's calls that can be in time, but not all, the longest go last (longest.py): in turn, one long prompt would
make ten short ones late. That is among its own, so no tenant has less of the turns for it.

How long one that joins will wait: those before it, at the pace of late. Before it are the more urgent, and of the equally
urgent those that have their turn first if all are equally long, so a flood of one tenant makes no other's wait longer.
The pace is the mean time between two that began while others waited, of about the last REMEMBERED of them. A line that
was empty says nothing of what engines can take, so the time until its first one begins is not counted. Calls begin
several at a time, so the time since the last one is one of these times and not all of them. It is none of them once no
call waits any more. The first of a line may wait however slow the pace is, as from it the pace is learnt anew.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import islice
from math import inf
from typing import Final

from pdgate.protocols.call import Call
from pdgate.protocols.priority import ORDINARY
from pdgate.scheduling.admission.longest import longest_of

REMEMBERED: Final = 20

TOKENS_REMEMBERED: Final = 100
"""As their lengths differ more than their times: with the last 20 one long prompt makes all others look late."""

PLANNED_SECONDS: Final = 0.1
"""For which it holds who goes last."""

LOOKED_AT: Final = 1000
"""Calls that can be in time, the first of them, of which it is found out who goes last: half a millisecond."""

SPARE: Final = 32
"""Of what does not count any more, so much may lie in a heap beside as much again as counts."""

NONE: Final[frozenset["LinePlace"]] = frozenset()


@dataclass(slots=True, eq=False)
class LinePlace:
    """One that waits.

    Attributes:
        urgency: MOST_URGENT to LEAST_URGENT.
        tenant: Name of those that share a turn; "" is a tenant, too.
        tokens: What serving it takes of its tenant's turn.
        due: When it is late unless it has begun; no call is where that is not said.
        seconds: For which an engine that does nothing else reads it; said with `due`.
        call: Whose it is, for who looks up what is cached of its prompt.
        made_way: How many running calls have given way to it.
    """

    urgency: int = ORDINARY
    tenant: str = ""
    tokens: int = 1
    due: float = inf
    made_way: int = 0
    seconds: float = 0.0
    call: Call | None = None


@dataclass(slots=True)
class _Turns:
    """Tenants that take turns, each with a queue of which any call can leave at once: a line may be long.

    Attributes:
        had: Tenant -> where its turns have come to, in tokens.
        now: Where the turn served last began; a tenant that joins begins no earlier.
        waiting: Calls of all of them.
        deep: How many of them have more than no call, than one, than two, ...; the last is not 0.
        came: Tenant -> number of its queue, by which those that have had the same are in the order in which they came.
        queues: How many there have been.
        order: Heap of (had, came, tenant). What is not as it says there any more does not count.
        gone: Heap of (had, tenant) of those without calls that had more than the others; the same holds.
    """

    tenants: dict[str, OrderedDict[LinePlace, None]] = field(default_factory=dict)
    had: dict[str, int] = field(default_factory=dict)
    now: int = 0
    waiting: int = 0
    deep: list[int] = field(default_factory=list)
    came: dict[str, int] = field(default_factory=dict)
    order: list[tuple[int, int, str]] = field(default_factory=list)
    gone: list[tuple[int, str]] = field(default_factory=list)
    queues: int = 0

    def add(self, place: LinePlace) -> None:
        tenant = place.tenant
        queue = self.tenants.get(tenant)
        if queue is None:
            queue = self.tenants[tenant] = OrderedDict()
            had = self.had[tenant] = max(self.now, self.had.get(tenant, 0))
            self.queues += 1
            self.came[tenant] = self.queues
            self._put(had, self.queues, tenant)
        deep, before = self.deep, len(queue)
        if before == len(deep):
            deep.append(0)
        deep[before] += 1
        self.waiting += 1
        queue[place] = None

    def before(self, tenant: str) -> int:
        """How many have their turn before one of that tenant that joins, if all are equally long."""
        # Of each tenant one more than it has itself, so all of its own.
        of_each = len(self.tenants.get(tenant, ())) + 1
        if 2 * of_each < len(self.deep):
            return sum(self.deep[:of_each])
        return self.waiting - sum(self.deep[of_each:])

    def first(self, last: frozenset[LinePlace] = NONE) -> LinePlace:
        """Whose turn it is. `last`: those who have theirs when no other waits."""
        order = self.order
        passed: list[tuple[int, int, str]] = []
        found: LinePlace | None = None
        while order and found is None:
            had, came, tenant = order[0]
            if self.came.get(tenant) != came or self.had[tenant] != had:
                heappop(order)
                continue
            found = next((place for place in self.tenants[tenant] if place not in last), None)
            if found is None:
                passed.append(heappop(order))
        for one in passed:
            heappush(order, one)
        return found or next(iter(self.tenants[order[0][2]]))

    def take(self, place: LinePlace) -> None:
        """Serve the one whose turn it is."""
        tenant = place.tenant
        self.now = self.had[tenant]
        had = self.had[tenant] = self.now + max(place.tokens, 1)
        self.drop(place)
        if tenant in self.tenants:
            self._put(had, self.came[tenant], tenant)

    def drop(self, place: LinePlace) -> None:
        queue, deep = self.tenants[place.tenant], self.deep
        del queue[place]
        deep[len(queue)] -= 1
        if not deep[-1]:
            deep.pop()
        self.waiting -= 1
        self._tidy(place.tenant)

    def newest_of_the_longest(self) -> LinePlace:
        longest = max(self.tenants, key=lambda tenant: len(self.tenants[tenant]))
        return next(reversed(self.tenants[longest]))

    def _tidy(self, tenant: str) -> None:
        """What a tenant has had is forgotten once it would not set it back."""
        if self.tenants[tenant]:
            return
        del self.tenants[tenant], self.came[tenant]
        had, gone = self.had, self.gone
        if not self.tenants:
            # No call waits: all begin alike again.
            self.now = max(had.values())
            had.clear()
            gone.clear()
            self.order.clear()
            return
        heappush(gone, (had[tenant], tenant))
        while gone and gone[0][0] <= self.now:
            _, name = heappop(gone)
            if name not in self.tenants and had.get(name, inf) <= self.now:
                del had[name]
        if len(gone) > SPARE + 2 * len(had):
            self.gone = [(had[name], name) for name in had if name not in self.tenants]
            heapify(self.gone)

    def _put(self, had: int, came: int, tenant: str) -> None:
        """Where its turns have come to."""
        heappush(self.order, (had, came, tenant))
        if len(self.order) > SPARE + 2 * len(self.tenants):
            self.order = [(self.had[name], came, name) for name, came in self.came.items()]
            heapify(self.order)


@dataclass(slots=True)
class _Level:
    """The equally urgent.

    Attributes:
        in_time: Those that can be in time, when that was last looked at.
        late: The others.
        owed: Seconds for which late ones may be read, though others wait.
        longest: Of those that can be in time, who goes last, as of `planned`: monotonic seconds, and not always later
            than before, as engines may have less to read than they said.
    """

    in_time: _Turns = field(default_factory=_Turns)
    late: _Turns = field(default_factory=_Turns)
    owed: float = 0.0
    longest: frozenset[LinePlace] = NONE
    planned: float = -inf

    @property
    def last(self) -> _Turns:
        """The one of the two which is served last; without any there is nothing."""
        return self.late if self.late.tenants else self.in_time

    def take(
        self, now: float, late_share: float, tokens_per_second: float | None = None
    ) -> LinePlace:
        in_time, late = self.in_time, self.late
        if tokens_per_second is not None and abs(now - self.planned) >= PLANNED_SECONDS:
            self._plan(now, tokens_per_second)
        while in_time.tenants:
            place = in_time.first(self.longest)
            if place.due < now:
                # Not served, so its tenant's turn it is still.
                in_time.drop(place)
                late.add(place)
            elif late.tenants and self.owed > 0 and self.owed >= (first := late.first()).seconds:
                self.owed -= first.seconds
                late.take(first)
                return first
            else:
                in_time.take(place)
                self.owed += late_share * place.seconds if late.tenants else -self.owed
                return place
        place = late.first()
        late.take(place)
        return place

    def _plan(self, now: float, tokens_per_second: float) -> None:
        """Find out who is late, and who goes last of the others, where tenants have equal parts of the pace."""
        self.planned = now
        for place in [p for queue in self.in_time.tenants.values() for p in queue if p.due < now]:
            self.in_time.drop(place)
            self.late.add(place)
        queues = self.in_time.tenants.values()
        tenants = max(1, len(queues))
        each, first = tokens_per_second / tenants, LOOKED_AT // tenants
        self.longest = NONE.union(
            *(longest_of(islice(queue, first), now, each) for queue in queues)
        )

    def of(self, place: LinePlace) -> _Turns:
        """Turns among which a call waits."""
        queue = self.late.tenants.get(place.tenant)
        return self.late if queue is not None and place in queue else self.in_time


class Line:
    def __init__(self, late_share: float = 0.0) -> None:
        """`late_share`: of the seconds for which those are read that begin while late ones wait."""
        self.late_share = late_share
        self._levels: dict[int, _Level] = {}
        self._waiting: set[LinePlace] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, place: LinePlace) -> bool:
        return place in self._waiting

    def join(self, place: LinePlace) -> None:
        self._levels.setdefault(place.urgency, _Level()).in_time.add(place)
        self._waiting.add(place)

    def next(self, now: float = -inf, tokens_per_second: float | None = None) -> LinePlace:
        """Takes the one whose turn it is. Raises LookupError if no call waits.

        `tokens_per_second`: of prompts of calls that begin, if that is known (Pace).
        """
        if not self._waiting:
            raise LookupError("no call waits")
        level = self._levels[self.most_urgent()]
        place = level.take(now, self.late_share, tokens_per_second)
        self._waiting.remove(place)
        return place

    def most_urgent(self) -> int:
        """The urgency of the one whose turn it is. Raises ValueError if no call waits."""
        return min(u for u, level in self._levels.items() if level.last.tenants)

    def leave(self, place: LinePlace) -> None:
        """Take a call out of the line, if it is there."""
        if place in self._waiting:
            self._waiting.remove(place)
            self._levels[place.urgency].of(place).drop(place)

    def ahead(self, newcomer: LinePlace) -> int:
        """How many have their turn before a newcomer that can be in time."""
        found = 0
        for urgency, level in self._levels.items():
            if urgency < newcomer.urgency:
                found += level.in_time.waiting + level.late.waiting
            elif urgency == newcomer.urgency:
                found += level.in_time.before(newcomer.tenant)
        return found

    def gives_way(self, newcomer: LinePlace) -> LinePlace:
        """The call that has to leave for a newcomer to a full line: maybe the newcomer itself."""
        least = max((u for u, level in self._levels.items() if level.last.tenants), default=-1)
        if newcomer.urgency > least:
            return newcomer
        turns = self._levels[least].last
        longest = turns.newest_of_the_longest()
        if newcomer.urgency < least or turns is self._levels[least].late:
            return longest
        of_newcomer = len(turns.tenants.get(newcomer.tenant, ()))
        of_longest = len(turns.tenants[longest.tenant])
        return longest if of_newcomer + 1 < of_longest else newcomer


class Pace:
    """Time between two beginnings, from which the wait of one that joins follows."""

    __slots__ = ("_last", "_seconds", "_sum_seconds", "_sum_tokens")

    def __init__(self) -> None:
        self._last: float | None = None
        self._seconds: float | None = None
        # Of those that began of late; what is longer ago counts less.
        self._sum_seconds = self._sum_tokens = 0.0

    @property
    def tokens_per_second(self) -> float | None:
        """Of the prompts of those that begin; None while nothing is known, as of calls whose prompts have no tokens."""
        known = self._sum_seconds and self._sum_tokens
        return self._sum_tokens / self._sum_seconds if known else None

    def began(
        self, now: float, *, others_wait: bool, tokens: int = 0, waited: float | None = None
    ) -> None:
        """One with a prompt of so many tokens, that had waited, began at `now`, monotonic seconds.

        `waited`: for how long, where that counts if no time between two is known.
        """
        took = waited if self._last is None else now - self._last
        if took is not None:
            known = self._seconds
            self._seconds = took if known is None else known + (took - known) / REMEMBERED
            kept = 1 - 1 / TOKENS_REMEMBERED
            self._sum_seconds = self._sum_seconds * kept + took
            self._sum_tokens = self._sum_tokens * kept + tokens
        self._last = now if others_wait else None

    def rest(self) -> None:
        """No call waits any more."""
        self._last = None

    def keeps_a_second_from_waiting(self, longest: float) -> bool:
        """Whether it would wait for longer than that: with none behind the first, no time between two is ever known."""
        return self._seconds is not None and 2 * self._seconds > longest

    def wait(self, before: int, now: float) -> float | None:
        """Seconds until one with so many before it begins; None while nothing is known."""
        if self._seconds is None:
            return None
        seconds = self._seconds
        since = now - self._last if self._last is not None else 0.0
        if since > seconds:
            # No call has begun for longer than usual: as if one did now.
            seconds += (since - seconds) / REMEMBERED
        return max(since, (before + 1) * seconds)

    def beyond(self, before: int, now: float, longest: float) -> float:
        """By how much longer than that one with so many before it would wait; 0 if it may wait."""
        expected = self.wait(before, now) if before else None
        return 0.0 if expected is None else max(0.0, expected - longest)
