"""KV lease of a split call: the engine that holds it, and until when; a machine per attempt. Pure.

    PREFILLING    prefill computes: closing its leg frees all of it
    HELD          prefill has answered, and keeps the KV for its lease
    HANDED_OVER   decode has the KV's address; if it cannot be reached: HELD again
    RELEASED      decode has it, or prefill has the order to drop it
    LOST          prefill keeps it for no engine: stranded, in the `KvLedger`, until the lease ends

In this order, and none after the last two. Where both legs start together decode gets the address
while prefill computes, so HELD is left out. What a protocol does is data, its `KvRules`: each
forwarder declares them, and docs/wire/ has the sources.

All times are seconds on the clock of the call's record.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from heapq import heapify, heappop, heappush
from math import inf
from time import monotonic
from typing import Final

from pdgate.protocols.call import Call
from pdgate.protocols.errors import EngineRefused, EngineRejected, KvExpired
from pdgate.protocols.members import plain_members

SAFE_SHARE = 0.8
"""Of a lease. Prefill's clock started before its answer was here, and decode needs time too."""

BEGIN_SHARE = 0.9
"""Of a lease, within which decode should have begun."""


@plain_members
class Late(Enum):
    """What decode does with KV that prefill may have dropped by then."""

    FAILS = auto()
    """Decode reports it: an error, or an abort."""
    ANSWERS_WRONG = auto()
    """It reads what is there now, and answers 200 with tokens of another prompt."""


@dataclass(frozen=True, slots=True)
class KvRules:
    """What a protocol does with the KV that prefill has computed.

    Attributes:
        lease_seconds: How long prefill keeps it after its answer, if no engine fetches it. 0: its
            answer means that nothing is kept. inf: for as long as it lives, or unknown.
        late: What decode does when the lease is over.
        decode_frees: Closing decode's connection makes decode tell prefill, which frees it at
            once. Otherwise only the lease does.
        decode_renews: Decode prolongs the lease while it has not read, so that what it leaves
            behind when it dies is kept for a lease from then on.
        gateway_frees: The gateway tells prefill what no decode engine comes for (releases.py).
        safe_share: Of the lease, within which decode may be asked.
        apart: Makes of a call whose KV was late, and of a new word, one that decode does not
            take for one that it has KV of; None where it keeps nothing that was late.
    """

    lease_seconds: float = inf
    late: Late = Late.FAILS
    decode_frees: bool = False
    decode_renews: bool = False
    gateway_frees: bool = False
    safe_share: float = SAFE_SHARE
    apart: Callable[[Call, str], Call] | None = None

    @property
    def keeps(self) -> bool:
        """Whether anything is held between prefill's answer and decode's."""
        return self.lease_seconds > 0


NOTHING_KEPT = KvRules(lease_seconds=0)
"""Prefill keeps nothing that a gateway could strand: the engines see to it among themselves."""


@plain_members
class KvState(Enum):
    PREFILLING = "prefilling"
    HELD = "held"
    HANDED_OVER = "handed_over"
    RELEASED = "released"
    LOST = "lost"


# For what is done with every call (protocols/members.py).
_PREFILLING: Final = KvState.PREFILLING
_HELD: Final = KvState.HELD
_HANDED_OVER: Final = KvState.HANDED_OVER
RELEASED: Final = KvState.RELEASED
_LOST: Final = KvState.LOST
_ANSWERS_WRONG: Final = Late.ANSWERS_WRONG

_TOO_LATE: Final = "no decode engine took the call in time"


class KvLedger:
    """What all calls of a process have left at prefill engines.

    Attributes:
        held: Prompts whose KV waits for a decode engine, or for its first byte.
        strandings: Instance -> prompts whose KV it has kept for no engine, ever.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self.held = 0
        self.strandings: Counter[str] = Counter()
        self._until: list[tuple[float, str]] = []
        self._for_ever: Counter[str] = Counter()

    def strand(self, instance: str, until: float) -> None:
        """A prompt's KV stays there for no engine, until then at the latest."""
        self.strandings[instance] += 1
        if until == inf:
            self._for_ever[instance] += 1
            return
        heappush(self._until, (until, instance))
        # Also where `stranded` is never read, the list holds no more than one lease's worth.
        self._drop_over()

    def forget(self, instance: str) -> None:
        """Forget the KV of an engine that refuses connections: its process is gone, and its memory."""
        self._for_ever.pop(instance, None)
        if any(at == instance for _, at in self._until):
            self._until = [entry for entry in self._until if entry[1] != instance]
            heapify(self._until)

    def left(self, instance: str) -> None:
        """Forget an engine that the fleet has no more, but for the leases that run there."""
        self.strandings.pop(instance, None)
        self._for_ever.pop(instance, None)

    def stranded(self) -> Mapping[str, int]:
        """Instance -> prompts whose KV it still keeps for no engine, at most."""
        self._drop_over()
        return Counter(at for _, at in self._until) + self._for_ever

    def _drop_over(self) -> None:
        now = self._clock()
        while self._until and self._until[0][0] <= now:
            heappop(self._until)


class KvLease:
    """The KV of one attempt at a split call.

    Attributes:
        prefill: The id of the instance that computes it.
    """

    __slots__ = ("_decode", "_held_since", "_ledger", "_rules", "prefill", "state")

    def __init__(self, rules: KvRules, prefill: str, ledger: KvLedger) -> None:
        self._rules = rules
        self._ledger = ledger
        self._decode = ""
        self._held_since = 0.0
        self.prefill = prefill
        self.state = _PREFILLING

    def prefilled(self, now: float) -> None:
        """Prefill has answered well."""
        if self.state is not _PREFILLING:
            # Decode began first, which shows that it had the KV.
            return
        if self._rules.lease_seconds <= 0:
            self.state = RELEASED
            return
        self.state = _HANDED_OVER if self._decode else _HELD
        self._held_since = now
        self._ledger.held += 1

    def ask_decode(self, decode: str, now: float) -> None:
        """The decode instance is sent there.

        Raises KvExpired if it might not find the KV any more: the prompt must be read again.
        """
        if self.state is _HELD:
            rules = self._rules
            if now - self._held_since > rules.lease_seconds * rules.safe_share:
                raise KvExpired(_TOO_LATE)
            self.state = _HANDED_OVER
        elif self.state is not _PREFILLING:
            raise KvExpired(_TOO_LATE)
        self._decode = decode

    def seconds_to_begin(self, now: float, *, streams: bool) -> float | None:
        """Seconds within which decode should have begun; None if it may take as long as it likes.

        A decode engine that would read another prompt's KV is left before it can: it would keep
        what it has read in its prefix cache, too, under this prompt's name. Only streams begin
        when decode does.
        """
        rules, held = self._rules, self.state is _HANDED_OVER
        if not held or not streams or rules.late is not _ANSWERS_WRONG:
            return None
        return max(0.0, self._held_since + rules.lease_seconds * BEGIN_SHARE - now)

    def apart(self, call: Call, word: str) -> Call:
        """What to ask next, now that the KV was late."""
        return call if self._rules.apart is None else self._rules.apart(call, word)

    def decode_refused(self) -> None:
        """Keep the KV for another decode engine, as nothing reached this one."""
        self._decode = ""
        if self.state is _HANDED_OVER:
            self.state = _HELD

    def decode_began(self, now: float, *, streams: bool) -> None:
        """Decode has said something, so it has the KV, and prefill need not keep it.

        Raises KvExpired if it may be another prompt's: decode queues calls that it has taken,
        prolongs no lease before it begins with them, and would not notice. Of an answer that
        is no stream the time of the first token is unknown, and nothing can be said.
        """
        if self.state is not _HANDED_OVER:
            self._leave(RELEASED)
            return
        self.state = RELEASED
        self._ledger.held -= 1
        if not streams or self._rules.late is not _ANSWERS_WRONG:
            return
        if now - self._held_since > self._rules.lease_seconds:
            raise KvExpired(
                "the decode engine began when the prefill engine's KV had expired", at=self._decode
            )

    def end(self, error: BaseException | None, now: float) -> None:
        """The attempt is over, and with it every connection of it, in whatever way."""
        state = self.state
        if state is RELEASED or state is _LOST:
            return
        if self._rules.gateway_frees:
            self._leave(RELEASED)
        elif state is _HELD:
            self._lose(self._held_since)
        elif state is _PREFILLING:
            # Closing its connection ends prefill's request, and frees what it had.
            self.state = RELEASED
        elif isinstance(error, EngineRefused):
            # It never heard of it.
            self._lose(self._held_since)
        elif self._is_freed(error):
            self._leave(RELEASED)
        else:
            self._lose(now if self._rules.decode_renews else self._held_since)

    def _is_freed(self, error: BaseException | None) -> bool:
        """Whether decode lives, so that its connector says that the KV is not needed.

        None: the answer is whole. A cancellation: the client left, and we closed on decode.
        """
        if error is None:
            return True
        by_us_or_4xx = isinstance(error, EngineRejected) or not isinstance(error, Exception)
        return self._rules.decode_frees and by_us_or_4xx

    def _lose(self, since: float) -> None:
        self._leave(_LOST)
        self._ledger.strand(self.prefill, since + self._rules.lease_seconds)

    def _leave(self, state: KvState) -> None:
        # One by one: to look for a member in a set is to hash it in Python.
        before = self.state
        if before is _HELD or before is _HANDED_OVER:
            self._ledger.held -= 1
        if before is not RELEASED and before is not _LOST:
            self.state = state
