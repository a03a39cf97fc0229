"""Sequence of a publisher's numbered batches: which are missing, and what to do then. No I/O.

    live 5            follows 4                               -> taken
    live 9            6 to 8 are missing                      -> hold 9, ask for a replay from 5
    replayed 5        the one we have: it is the same engine
    replayed 6 7 8    -> taken, and then what was held: 9
    replay over

A replay begins at the last batch that we have, not after it: if the engine has another by that
number, or none, it has been started anew meanwhile, and nothing of what we knew is true. If it
has later ones only, its buffer has lost what we missed. In both cases all that is known of its
blocks is forgotten (a resync), and what it still remembers is replayed from the beginning.

Without a replay endpoint every gap is a resync, and what happened before we came is not known.

Source: vLLM 0.32.0, vllm/distributed/kv_events.py, ZmqEventPublisher: numbers from 0 in every
life, no batch twice, a bounded buffer for replays.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol

from xxhash import xxh3_64_intdigest

NOTHING: Final = -1
"""The number of the last batch before there is any."""

MAX_HELD: Final = 10_000
"""Batches that came during a replay. The oldest go first, and are asked for again."""

MAX_HELD_BYTES: Final = 64 << 20


class SequenceListener(Protocol):
    def taken(self, payload: bytes) -> None:
        """The next batch."""

    def forget(self) -> None:
        """What was taken before this no longer says what the engine has."""

    def ask(self, first: int) -> None:
        """Have the engine repeat the batches from this number on."""


@dataclass(slots=True)
class SequenceCounts:
    """
    Attributes:
        batches: Taken, live or replayed.
        gaps: Times that something was missing.
        replays: Asked for.
        resyncs: Times that a gap could not be healed, so that all was forgotten.
        restarts: Times that the engine turned out to be in another life.
    """

    batches: int = 0
    gaps: int = 0
    replays: int = 0
    resyncs: int = 0
    restarts: int = 0


class Sequence:
    """
    Attributes:
        replaying: A replay has been asked for, and is not over.
    """

    def __init__(
        self, listener: SequenceListener, counts: SequenceCounts, *, replays: bool
    ) -> None:
        """
        Args:
            replays: Whether the engine can repeat what was missed.
        """
        self.replaying = False
        self._listener = listener
        self._counts = counts
        self._can_replay = replays
        self._last = NOTHING
        self._last_digest = 0
        self._held: deque[tuple[int, bytes]] = deque()
        self._held_bytes = 0
        # Of the replay that was asked for last.
        self._last_before = NOTHING
        self._nothing_replayed = True
        self._broken = False
        # The connection was lost, before it was asked for; or since.
        self._unsure = False
        self._doubtful = False

    @property
    def held(self) -> int:
        """Batches that wait for the end of a replay."""
        return len(self._held)

    @property
    def settled(self) -> bool:
        """Whether all that was taken is of the life of the engine that was heard last."""
        return not (self.replaying or self._doubtful)

    def start(self) -> None:
        """What the engine remembers of the time before we came."""
        if self._can_replay:
            self._ask()

    def check(self) -> None:
        """Ask, after a while of silence, whether something was sent, or the engine is another by now."""
        if self._can_replay and not self.replaying:
            self._ask()

    def doubt(self) -> None:
        """The connection was lost: what answers next may be another life."""
        # If it is not, it can repeat these.
        self._held.clear()
        self._held_bytes = 0
        if self._can_replay:
            self._doubtful = True
        elif self._last != NOTHING:
            self._lost(restarted=False)

    def live(self, number: int, payload: bytes) -> None:
        if self.replaying:
            self._hold(number, payload)
        elif number == self._last + 1 and not self._doubtful:
            self._take(number, payload)
        elif self._can_replay:
            # A number that we have had is either late, after a replay, or of another life.
            if number > self._last + 1 and self._last != NOTHING:
                self._counts.gaps += 1
            self._hold(number, payload)
            self._ask()
        else:
            self._jump(number, payload)

    def replayed(self, number: int, payload: bytes) -> None:
        if not self.replaying or self._broken:
            return
        first, self._nothing_replayed = self._nothing_replayed, False
        if self._last == NOTHING or (not first and number == self._last + 1):
            self._take(number, payload)
        elif not first:
            # The publisher's own socket drops what it cannot hold; the rest is asked for anew.
            self._broken = number > self._last
        elif number != self._last:
            self._lost(restarted=number < self._last)
            self._take(number, payload)
        elif xxh3_64_intdigest(payload) != self._last_digest:
            self._lost(restarted=True)
            self._broken = True

    def replay_over(self) -> None:
        """The engine says that this was all."""
        if not self.replaying:
            return
        self.replaying = False
        if self._nothing_replayed and self._last != NOTHING:
            # It does not even have the last one that we have.
            self._lost(restarted=True)
            self._ask()
        elif self._doubtful or (self._broken and self._came_nearer):
            self._ask()
        else:
            self._take_held()

    def replay_failed(self) -> None:
        """The engine did not answer, or not to the end."""
        if not self.replaying:
            return
        self.replaying = False
        if self._came_nearer:
            self._ask()
            return
        if self._unsure and self._nothing_replayed and self._last != NOTHING:
            self._lost(restarted=False)
        self._take_held()

    @property
    def _came_nearer(self) -> bool:
        """Asking again makes sense: the last replay was of use."""
        return self._last != self._last_before

    def _ask(self) -> None:
        self._counts.replays += 1
        self._unsure = self._doubtful or (self._unsure and self._nothing_replayed)
        self._last_before, self._doubtful = self._last, False
        self.replaying, self._nothing_replayed, self._broken = True, True, False
        self._listener.ask(max(self._last, 0))

    def _hold(self, number: int, payload: bytes) -> None:
        self._held.append((number, payload))
        self._held_bytes += len(payload)
        while len(self._held) > MAX_HELD or self._held_bytes > MAX_HELD_BYTES:
            self._held_bytes -= len(self._held.popleft()[1])

    def _take_held(self) -> None:
        """What came during the replay."""
        held, self._held = self._held, deque()
        held_bytes, self._held_bytes = self._held_bytes, 0
        while held:
            number, payload = held[0]
            if number == self._last + 1:
                self._take(number, payload)
            elif number > self._last or self._nothing_replayed:
                if self._came_nearer:
                    # A gap behind what has been replayed.
                    self._held, self._held_bytes = held, held_bytes
                    self._ask()
                    return
                self._jump(number, payload)
            # Else it has been replayed.
            held.popleft()
            held_bytes -= len(payload)

    def _jump(self, number: int, payload: bytes) -> None:
        """What is missing stays missing."""
        if self._last != NOTHING:
            if number > self._last and not self._can_replay:
                self._counts.gaps += 1
            self._lost(restarted=number <= self._last)
        self._take(number, payload)

    def _lost(self, *, restarted: bool) -> None:
        if restarted:
            self._counts.restarts += 1
        else:
            self._counts.resyncs += 1
        self._last = NOTHING
        self._listener.forget()

    def _take(self, number: int, payload: bytes) -> None:
        self._last, self._last_digest = number, xxh3_64_intdigest(payload)
        self._counts.batches += 1
        self._listener.taken(payload)
