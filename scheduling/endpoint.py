"""Endpoint: an instance as a policy sees it; the record, and what is in flight there."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from warnings import warn

from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.health.breaker import Breaker, BreakerState
from pdgate.scheduling.latency.model import LatencyModel
from pdgate.scheduling.neighbours import SharedEndpoint
from pdgate.scheduling.status import NOTHING, Beyond, Status

NO_LENGTHS: Final[Mapping[str, int]] = {}


@dataclass(slots=True, eq=False)
class Endpoint:
    """One instance and the gateway's own account of it.

    Attributes:
        up: Answered its last probe, and no call has been refused since.
        silent: Not up, because it did not answer a probe in time; it may only be busy.
        asleep: Not up, because it sleeps or is paused: that is no failure.
        drained: An operator wants it to get no more calls.
        left: Was up, and has not been since.
        returned: When it was up again after an outage, monotonic seconds; None if that is long ago.
        breaker: Whether calls fail there.
        trials: Calls in flight that came while it was on trial.
        ended_well: Legs of ours that did, ever.
        worked_lately: Some of them did in the last seconds (gateway/liveness).
        stuck: It says that it is well, and does nothing (scheduling/health/liveness.py).
        ejections: Why it was taken out -> how often.
        given_up: Why legs there were ended that waited in vain -> how many.
        sides: Of those that its role allows, the ones that it is to serve now (scheduling/roles.py);
            None for all of them.
        models: Names that it serves; kept while it is down.
        lengths: Of these, how many tokens a prompt and its answer may have, where it says that.
        strict: Whether it refuses what is longer, and cuts none of it.
        calls: Reserved and not yet ended.
        prefills: Of these, those that it only reads, for another one to answer; without those of replicas.
        tokens: Prompt tokens of those calls, estimated.
        unread_tokens: Of these, what it has still to compute itself.
        presumed: Calls of this process whose prompt counts as read, though nothing has shown it.
        own_unread_squares: The sum of squares of those of this process, prompt by prompt.
        latency: How long what it does will take.
        dropped: How often a prompt that it was to compute was taken away again, as its call gave way.
        answering: Calls for which it makes tokens now, as far as can be seen.
        read_tokens: All prompt tokens that it has ever had to compute itself and has not any more: read, presumed to be, or in vain.
        shown_reads: How often it has shown that it had read a prompt of ours, ever.
        watched: Streams of which its pace is learnt just now.
        whole_calls: Calls whose prompt was its own to compute, since we know it.
        handed_over: Calls that it answered with KV of a prefill engine, since we know it.
        status: What it says of its own load; None while nothing (recent) is known.
        beyond: What it has besides, as of then (scheduling/account.py).
        shared: What of calls, tokens, unread_tokens and answering is other processes', which are
            added to ours; None where this process is alone.
    """

    instance: Instance
    up: bool = False
    silent: bool = False
    asleep: bool = False
    drained: bool = False
    left: bool = False
    returned: float | None = None
    breaker: Breaker = field(default_factory=Breaker)
    trials: int = 0
    ended_well: int = 0
    worked_lately: bool = False
    stuck: bool = False
    ejections: Counter[str] = field(default_factory=Counter)
    given_up: Counter[str] = field(default_factory=Counter)
    sides: frozenset[Role] | None = None
    models: frozenset[str] = frozenset()
    lengths: Mapping[str, int] = field(default_factory=lambda: NO_LENGTHS)
    strict: bool = False
    calls: int = 0
    prefills: int = 0
    tokens: int = 0
    unread_tokens: int = 0
    presumed: int = 0
    own_unread_squares: int = 0
    latency: LatencyModel = field(default_factory=LatencyModel)
    dropped: int = 0
    answering: int = 0
    read_tokens: int = 0
    shown_reads: int = 0
    watched: int = 0
    whole_calls: int = 0
    handed_over: int = 0
    status: Status | None = None
    beyond: Beyond = NOTHING
    shared: SharedEndpoint | None = None

    def serves(self, role: Role) -> bool:
        """Whether it is to get such calls now."""
        allowed = self.instance.role.serves(role)
        return allowed and (self.sides is None or role in self.sides)

    @property
    def predicts(self) -> LatencyModel:
        """Former name of `latency`, until 0.3."""
        warn("Endpoint.predicts is Endpoint.latency now", DeprecationWarning, stacklevel=2)
        return self.latency

    @property
    def own_calls(self) -> int:
        """Those of this process."""
        return self.calls if self.shared is None else self.calls - self.shared.calls

    @property
    def own_prefills(self) -> int:
        return self.prefills if self.shared is None else self.prefills - self.shared.near.prefills

    @property
    def own_unread_tokens(self) -> int:
        shared = self.shared
        return self.unread_tokens if shared is None else self.unread_tokens - shared.unread_tokens

    @property
    def unread_squares(self) -> float:
        """Others' prompts are taken to be as long as ours."""
        if self.shared is None:
            return float(self.own_unread_squares)
        own = self.own_unread_tokens
        if own == self.unread_tokens or not own:
            return float(self.own_unread_squares)
        return self.own_unread_squares * (self.unread_tokens / own)

    @property
    def fit(self) -> bool:
        """Calls may go there."""
        return self.up and not self.drained and self.breaker.state is not BreakerState.OPEN

    @property
    def may_serve(self) -> bool:
        """Calls may go there if there is no better one: it is there, and no component said no."""
        return (self.up or self.silent) and not self.drained

    @property
    def careful(self) -> bool:
        """Not every call may go there."""
        return self.returned is not None or self.breaker.state is BreakerState.TRIAL

    @property
    def state(self) -> str:
        """In a word, for operators."""
        if self.drained:
            return "drained"
        if not self.up:
            return "silent" if self.silent else "asleep" if self.asleep else "down"
        if self.breaker.state is not BreakerState.CLOSED:
            return "ejected" if self.breaker.state is BreakerState.OPEN else "trial"
        return "up" if self.returned is None else "slow_start"
