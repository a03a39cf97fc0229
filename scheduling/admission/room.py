"""Room for one more call at engines now, and how soon its prompt would be read there.

    prefill   one that has fewer calls than it may
    decode    fewer calls of the model have begun than all decode engines may have, and one of
              them has KV pages
    seconds   a decode engine whose steps stay short enough with one call more, and a prefill engine that
              reads soon what it has to read already

Calls are counted against decode from their start, not when decode gets them: what prefill has
computed must be taken by some decode engine. What engines say of their KV pages is a few seconds
old, so it only stops a call; it never lets more begin than the counts do.

Of more than ALL engines so many are looked at, and the next ones if these have no room: one look at a large fleet that is
full would cost as much as twenty calls, and there is one whenever an engine is let go.

Workers of one gateway take turns for a place, and for an engine that has room. Replicas cannot: each has the limits of numbers
for itself, and of time an equal part, whatever the others have.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from pdgate.protocols.instance import BOTH, DECODE, PLAIN, PREFILL, Instance, Role
from pdgate.scheduling.account import calls_there, unread_tokens_there
from pdgate.scheduling.admission.limits import Limits
from pdgate.scheduling.admission.others import NOBODY, OtherProcesses, may_have_one_more
from pdgate.scheduling.eligible import EligibleSet
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.neighbours import (
    Others,
    answers_of_this_gateway,
    prompts_of_this_gateway,
)
from pdgate.scheduling.pipeline.scorers import alone_seconds, waiting_seconds
from pdgate.scheduling.pipeline.shortlist import ALL

ALONE: Final = 2.0

HARDLY_IN_TIME: Final = 0.6
"""Of what a step may take: an engine whose step with one answer takes more can hardly keep the target. With twice that for all
engines 56 % of 30,000 chats were in time, and are 81 % with this; other loads change by less than what chance does."""

NOTHING: Final[Mapping[str, int]] = {}
NO_OTHERS: Final = Others()


@dataclass(frozen=True, slots=True)
class Ample:
    """Bounds below which there is room for sure, among the engines of one eligible set, as there mostly is.

    Attributes:
        begun: Fewer calls than that have begun, and
        reading: `reader` has fewer than that, with those for which no engine is reserved yet.
    """

    begun: int
    reader: Endpoint
    reading: int


NEVER: Final = Ample(0, Endpoint(Instance("", "", PLAIN, "")), 0)
"""One has to look."""


class Room:
    def __init__(self, limits: Limits, staged: bool = False) -> None:
        """`staged`: decode is chosen when prefill has answered, and till then a call is in no account of decode's."""
        self._limits = limits
        self._staged = staged
        # (model, role) -> where the look at very many engines begins.
        self._begins: dict[tuple[str, Role], int] = {}

    def _some(
        self, eligible: EligibleSet, role: Role, engines: Sequence[Endpoint] | None = None
    ) -> Sequence[Endpoint]:
        """Of the engines of a role, or of these of them, so many as are looked at."""
        if engines is None:
            engines = eligible.up[role]
        count = len(engines)
        if count <= ALL:
            return engines
        begin = self._begins.get((eligible.model, role), 0) % count
        return [*engines[begin : begin + ALL], *engines[: max(0, begin + ALL - count)]]

    def _has_none(self, eligible: EligibleSet, role: Role) -> bool:
        """Return False, and look at the next ones from now on."""
        if len(eligible.up[role]) > ALL:
            key = eligible.model, role
            self._begins[key] = self._begins.get(key, 0) + ALL
        return False

    def ample(self, eligible: EligibleSet) -> Ample:
        """What `for_one_more` says yes to, where there are no other processes."""
        whole = not eligible.disaggregated and eligible.up[PLAIN]
        answering = settled(eligible, PLAIN if whole else DECODE)
        readers = () if whole else settled(eligible, PREFILL)
        limits = self._limits
        looks = limits.kv_free, limits.prefill_seconds, limits.step_seconds
        if not answering or any(limit is not None for limit in looks):
            # Engines' pages, what they have to read, and their steps change with each look at them.
            return NEVER
        places, reads = self._limits.decode_concurrency, self._limits.prefill_concurrency
        begun = sys.maxsize if places is None else places * len(answering)
        if reads is None or not readers:
            return Ample(begun, answering[0], sys.maxsize)
        # If it has none left the others may have some.
        return Ample(begun, readers[0], reads)

    def for_one_more(
        self,
        eligible: EligibleSet,
        begun: int,
        beginning: int,
        others: OtherProcesses = NOBODY,
        since: int | None = None,
    ) -> bool:
        """
        Args:
            begun: Calls of these engines that have begun and not ended, `beginning` included.
            beginning: Those of them that no engine has been reserved for yet.
            others: Other processes, with which the limits are kept together.
            since: When one of our line last began, monotonic ns; None for one that has just come.
        """
        up = eligible.up
        if eligible.disaggregated:
            return self._can_answer(eligible, DECODE, begun, beginning, others, since) and (
                self._can_read(eligible, beginning, others, since)
            )
        if up[PLAIN]:
            return self.for_one_alone(eligible, PLAIN, begun, beginning, others, since)
        # Without a pair a call learns that at once, unless decode reads its prompt.
        return not up[DECODE] or self.for_one_alone(
            eligible, DECODE, begun, beginning, others, since
        )

    def for_one_alone(
        self,
        eligible: EligibleSet,
        role: Role,
        begun: int,
        beginning: int,
        others: OtherProcesses = NOBODY,
        since: int | None = None,
    ) -> bool:
        """The same of a call that one engine of that role serves, and no other."""
        return self._can_answer(eligible, role, begun, beginning, others, since) and (
            self._can_read_soon(eligible, role, _before(beginning, others, since))
        )

    def least_busy_reader(self, eligible: EligibleSet) -> Endpoint | None:
        """The prefill engine that has least to read, of those that are looked at; None without any."""
        return min(self._some(eligible, PREFILL), key=waiting_seconds, default=None)

    def _can_answer(
        self,
        eligible: EligibleSet,
        role: Role,
        begun: int,
        beginning: int,
        others: OtherProcesses,
        since: int | None,
    ) -> bool:
        """Without an engine there is nothing to wait for here: the call learns that at once."""
        engines = settled(eligible, role)
        if not engines:
            return True
        limit, kv_free = self._limits.decode_concurrency, self._limits.kv_free
        most = self._limits.step_seconds
        if most is not None:
            before = _before(beginning, others, since)
            if self._staged and role is DECODE:
                before += self._with_prefill(eligible)
            if not self._has_short_steps(most, eligible, role, engines, before):
                return False
        if limit is not None:
            ours, theirs = calls_at(limit, eligible, role, begun, others)
            if ours + theirs >= limit * len(engines):
                return False
            if not may_have_one_more(limit * len(engines), ours, others, since):
                return False
        return kv_free is None or any(kv_free_of(engine) >= kv_free for engine in engines)

    def _with_prefill(self, eligible: EligibleSet) -> int:
        """Calls of this gateway, by what those have that are looked at."""
        some = self._some(eligible, PREFILL)
        calls = sum(prompts_of_this_gateway(engine) for engine in some)
        return calls * len(eligible.up[PREFILL]) // len(some) if some else 0

    def _has_short_steps(
        self,
        most: float,
        eligible: EligibleSet,
        role: Role,
        engines: Sequence[Endpoint],
        before: int,
    ) -> bool:
        """Whether an engine's would be with one call more, and with its part of those that go before that."""
        each, rest = divmod(before, len(engines))
        for engine in self._some(eligible, role, engines):
            if steps_in(most, engine, more_calls=each):
                rest -= 1
                if rest < 0:
                    return True
        return self._has_none(eligible, role)

    def _can_read(
        self, eligible: EligibleSet, beginning: int, others: OtherProcesses, since: int | None
    ) -> bool:
        limit, engines = self._limits.prefill_concurrency, settled(eligible, PREFILL)
        if not self._can_read_soon(eligible, PREFILL, _before(beginning, others, since)):
            return False
        if limit is None or not engines:
            return True
        without_place = beginning + others.beginning
        for engine in engines:
            without_place -= max(0, limit - prompts_of_this_gateway(engine))
            if without_place < 0:
                if others.since is None:
                    # As `may_have_one_more` would say, whatever we have.
                    return True
                own = beginning + sum(_own_reading(engine) for engine in engines)
                return may_have_one_more(limit * len(engines), own, others, since)
        return False

    def _can_read_soon(self, eligible: EligibleSet, role: Role, before: int) -> bool:
        most = self._limits.prefill_seconds
        if most is None or not eligible.up[role]:
            return True
        # Each that begins takes an engine, as far as is known until it has reserved one.
        for engine in self._some(eligible, role, settled(eligible, role)):
            if reads_soon(most, engine):
                before -= 1
                if before < 0:
                    return True
        return self._has_none(eligible, role)

    def due(
        self, eligible: EligibleSet, tokens: int, now: float, cached: Mapping[str, int] = NOTHING
    ) -> tuple[float, float]:
        """Time at which a prompt must begin to be in time, where that is latest of the engines if they read nothing
        else; and for how many seconds it is read there.

        `cached`: Instance id -> tokens of it.
        """
        engines = _readers(eligible)
        if self._limits.in_time_seconds == inf or not engines:
            return inf, 0.0
        some = self._some(eligible, PREFILL if eligible.disaggregated else PLAIN)
        if cached and some is not engines:
            some = [*some, *(e for e in engines if e.instance.id in cached)]
        seconds = min(alone_seconds(e, tokens - cached.get(e.instance.id, 0)) for e in some)
        return now + self._limits.in_time_seconds - seconds, seconds

    def soonest(self, eligible: EligibleSet, now: float) -> float:
        """Time at which the engine that has least to read has read it."""
        if self._limits.in_time_seconds == inf:
            return now
        some = self._some(eligible, PREFILL if eligible.disaggregated else PLAIN)
        return now + min((waiting_seconds(e) for e in some), default=0.0)


def seconds_to_read(
    eligible: EligibleSet, prompt_tokens: int, role: Role | None = None
) -> float | None:
    """Return how soon the prompt of a call that began now would be read, wherever that is soonest.

    None for what cannot be known: there is no engine, or one that has shown nothing yet. Whatever
    of the prompt is cached somewhere is not known here, so this is the most that it takes.
    `role`: of the engines that read it; None for that which reads prompts.
    """
    least: float | None = None
    for endpoint in _readers(eligible) if role is None else eligible.up[role]:
        expected = _seconds(endpoint, prompt_tokens)
        if expected is None:
            return None
        if least is None or expected < least:
            least = expected
    return least


def _before(beginning: int, others: OtherProcesses, since: int | None) -> int:
    """Calls that have an engine before the next one of ours: those that begin, and one of each line whose turn is earlier."""
    ours = others.since is None or (since is not None and since <= others.since)
    return beginning + others.beginning + (0 if ours else others.lines)


def calls_at(
    limit: int, eligible: EligibleSet, role: Role, begun: int, others: OtherProcesses
) -> tuple[int, int]:
    """Calls, of this process and of the others, that take places at the settled engines of a role, which answer: all that
    have begun, but for those at engines that get no more, and those in the places of engines that are on their way back.

    `begun`, `others`: as in `Room.for_one_more`.
    """
    engines = settled(eligible, role)
    ours, theirs = begun, others.begun
    for engine in eligible.leaving:
        ours -= _own_answers(engine)
        theirs -= _answers_near(engine)
    if len(engines) < len(eligible.up[role]):
        for engine in eligible.up[role]:
            if engine.careful:
                own = min(limit, _own_answers(engine))
                ours -= own
                theirs -= min(limit - own, _answers_near(engine))
    if ours < begun:
        # Those may answer calls of other models, too.
        there = sum(_own_answers(engine) for engine in engines)
        ours = max(ours, min(begun, there), 0)
    theirs = max(theirs, 0)
    # What workers have there by other sets of engines: not all find the same ones well. Who has no call there
    # may have one, as with those it takes no turns.
    if ours and others is not NOBODY:
        theirs = max(theirs, sum(_answers_near(engine) for engine in engines))
    return ours, theirs


def _own_reading(engine: Endpoint) -> int:
    return engine.own_prefills if engine.instance.role is BOTH else engine.own_calls


def _own_answers(engine: Endpoint) -> int:
    return engine.own_calls - engine.own_prefills


def _answers_near(engine: Endpoint) -> int:
    """Those of other workers that it answers, or is to: what it only reads is at another engine as well."""
    return answers_of_this_gateway(engine) - _own_answers(engine)


def settled(eligible: EligibleSet, role: Role) -> Sequence[Endpoint]:
    """Those that may have every call: what one has room for that is on its way back, others would get."""
    engines = eligible.up[role]
    if not eligible.careful:
        return engines
    return [engine for engine in engines if not engine.careful] or engines


def _readers(eligible: EligibleSet) -> Sequence[Endpoint]:
    return eligible.up[PREFILL if eligible.disaggregated else PLAIN]


def kv_free_of(engine: Endpoint) -> float:
    """All of it, of one that does not say."""
    status = engine.status
    return 1.0 if status is None or status.kv_free is None else status.kv_free


def reads_soon(most: float, engine: Endpoint) -> bool:
    """Whether what it has to read takes less; one that has nothing of ours has room, whatever it says of others.

    What any prompt takes it to begin with is no queue: of an engine for which that is long, calls would come one at a time.
    """
    unread = engine.unread_tokens
    if not unread:
        return True
    most, expected = max(most, ALONE * engine.latency.begin_seconds()), waiting_seconds(engine)
    if expected < most:
        return True
    far = _far(engine)
    ours = expected * (unread - far.unread_tokens) / unread
    return ours * (far.count + 1) < most


def steps_in(
    most: float,
    engine: Endpoint,
    fewer_calls: int = 0,
    fewer_tokens: int = 0,
    more_calls: int = 0,
) -> bool:
    """Whether a step with one answer more takes no longer; or not twice as long as that answer's alone, where that
    takes long: else a target that no engine can keep would leave all of them without calls.

    Args:
        fewer_calls, fewer_tokens: What is there now and would not be.
        more_calls: That are on their way, and as long as those that are there.
    """
    if engine.calls <= fewer_calls and not more_calls:
        # Whatever it says of others.
        return True
    calls = calls_there(engine) - fewer_calls
    tokens = max(0, engine.tokens + max(0, engine.beyond.kv_tokens) - fewer_tokens)
    each = tokens // max(1, calls)
    with_it = calls + more_calls + 1
    expected = engine.latency.step_seconds(with_it, tokens + (more_calls + 1) * each)
    if expected is None or expected <= most:
        return True
    alone = engine.latency.step_seconds(1, each)
    if alone is not None and alone > HARDLY_IN_TIME * most and expected <= ALONE * alone:
        return True
    far = _far(engine)
    one = alone or 0.0
    if not far.count or expected <= one:
        return False
    # So many have steps as short as that, about: each takes as much more as the last one.
    together = 1 + (with_it - 1) * (most - one) / (expected - one)
    return (engine.calls - far.calls + more_calls + 1) * (far.count + 1) <= together


def _far(engine: Endpoint) -> Others:
    """What replicas have there. Each may have an equal part of a limit though others are over it: else who comes last has nothing."""
    return NO_OTHERS if engine.shared is None else engine.shared.far


def _seconds(endpoint: Endpoint, prompt_tokens: int) -> float | None:
    return endpoint.latency.prefill_seconds(
        unread_tokens_there(endpoint) + prompt_tokens,
        endpoint.unread_squares + prompt_tokens * prompt_tokens,
    )
