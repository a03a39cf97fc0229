"""One prefill and one decode engine in simulated time, behind the real scheduler and a rule.

    prefill   reads one prompt after the other, then hands its KV over
    decode    computes in steps: a token for every stream, and a chunk of the prompts that it
              reads itself, which makes the step longer for all
    clients   each asks again as soon as its answer is complete

Nothing here is random or takes real time, so rules can be compared exactly.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from pdgate.protocols.instance import Role
from pdgate.scheduling.disaggregation import SplitRule, Taken
from pdgate.scheduling.policies.least_loaded import LeastLoaded
from pdgate.scheduling.reservation import Reservation
from pdgate.scheduling.scheduler import Scheduler
from pdgate.scheduling.watch import StreamWatch
from tests.support.scripted import D0, P0, chat, fleet


@dataclass(frozen=True, slots=True)
class Speeds:
    """
    Attributes:
        prefill, decode: Seconds a prompt token takes there.
        step_seconds: Of decode, without any prompt.
        hand_over_seconds, per_token: What moving KV takes, fixed and by its length.
        room_tokens: Of prompts, that a step of decode takes in without becoming longer.
    """

    prefill: float = 0.0002
    decode: float = 0.0002
    step_seconds: float = 0.02
    hand_over_seconds: float = 0.03
    per_token: float = 0.00001
    chunk_tokens: int = 512
    room_tokens: int = 0


@dataclass
class Seen:
    """Seconds: to first tokens, and between tokens."""

    firsts: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    @property
    def first(self) -> float:
        return sum(self.firsts) / len(self.firsts)

    @property
    def gap(self) -> float:
        return sum(self.gaps) / len(self.gaps)


@dataclass
class Asked:
    """A call on its way; `unread` tokens are left for decode to read itself."""

    begun: float
    first: Callable[[float], StreamWatch | None]
    decode: Reservation
    unread: int = 0
    tokens: int = 0
    latest: float = 0.0
    watch: StreamWatch | None = None


class Simulation:
    def __init__(
        self, rule: SplitRule, prompts: Sequence[int], speeds: Speeds, clients: int, answer: int
    ) -> None:
        """`prompts`: their tokens, in the order in which they are asked."""
        self.seen = Seen()
        self._speeds = speeds
        self._answer = answer
        policies = LeastLoaded(), LeastLoaded(), LeastLoaded()
        self._scheduler = Scheduler(fleet(P0, D0), *policies, rule)
        self._left = iter(prompts)
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._prefill_free_at = 0.0
        self._streams: list[Asked] = []
        self._reading: deque[Asked] = deque()
        self._stepping = False
        for _ in range(clients):
            self._ask()

    def run(self) -> Seen:
        while self._events:
            self._now, _, act = heapq.heappop(self._events)
            act()
        return self.seen

    def _at(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (seconds, next(self._order), act))

    def _ask(self) -> None:
        tokens = next(self._left, None)
        if tokens is None:
            return
        call, begun = msgspec.structs.replace(chat(), prompt_tokens=tokens), self._now
        prefill = self._scheduler.reserve(Role.PREFILL, call)
        local = self._scheduler.decide(call, prefill).taken is Taken.LOCAL
        if local:
            prefill.end()
        decode = self._scheduler.reserve(Role.DECODE, call, reads=local)
        if local:
            asked = Asked(begun, lambda now: decode.has_read(now - begun), decode, unread=tokens)
            self._reading.append(asked)
            self._step_soon()
            return
        speeds = self._speeds
        read_at = max(self._now, self._prefill_free_at) + tokens * speeds.prefill
        self._prefill_free_at = read_at
        asked = Asked(begun, lambda now: decode.has_loaded(now - read_at), decode)

        def has_read() -> None:
            prefill.has_read(self._now - begun)
            prefill.end()

        def loaded() -> None:
            self._streams.append(asked)
            self._step_soon()

        self._at(read_at, has_read)
        self._at(read_at + speeds.hand_over_seconds + tokens * speeds.per_token, loaded)

    def _step_soon(self) -> None:
        if not self._stepping:
            self._stepping = True
            self._at(self._now, self._step)

    def _step(self) -> None:
        room, streams = self._speeds.chunk_tokens, list(self._streams)
        while room and self._reading:
            part = min(room, self._reading[0].unread)
            self._reading[0].unread -= part
            room -= part
            if self._reading[0].unread == 0:
                streams.append(self._reading.popleft())
        read = self._speeds.chunk_tokens - room
        longer = max(0, read - self._speeds.room_tokens) * self._speeds.decode
        end = self._now + self._speeds.step_seconds + longer
        self._at(end, lambda: self._stepped(streams))

    def _stepped(self, streams: Sequence[Asked]) -> None:
        for asked in streams:
            if asked.tokens == 0:
                asked.watch = asked.first(self._now)
                self.seen.firsts.append(self._now - asked.begun)
            else:
                self.seen.gaps.append(self._now - asked.latest)
            if asked.watch is not None:
                asked.watch.pieces(1, self._now)
            asked.tokens, asked.latest = asked.tokens + 1, self._now
        arrived = [asked for asked in self._streams if asked not in streams]
        self._streams = [asked for asked in streams if asked.tokens < self._answer] + arrived
        for asked in streams:
            if asked.tokens == self._answer:
                asked.decode.end()
                self._ask()
        self._stepping = False
        if self._streams or self._reading:
            self._step_soon()
