"""Service level objectives: of the engines that can keep them, the one that costs callers least.

    prefill, plain
        keep        first token in time
        prefer      lowest cost to callers: seconds until this first token, and as much again for
                    those that the engine computes for it, as calls that come behind wait for them
                    and, where engines say where they are, until KV is at the best partner
        of equals   most of the prompt cached, then least in flight
        otherwise   a call that cannot be in time waits where others are late already
    decode
        prefer      least in flight, and near

So a cached prompt is worth a wait, but no longer one than twice what it saves: were it worth any
that is in time, calls that all begin alike would queue at one engine of an idle fleet.

What a call has waited in the gateway (Call.waited_seconds) is off its time. If it is late then, it goes where it
is soonest: in the gateway's line calls that can be in time have gone before it already (admission/line.py), so
there is no call to be protected from it, and the engines where late calls wait are not to be.

A call that will be late is late by choice here, and never refused: that is for admission
(scheduling/admission). `passed_over` says how many there were.

Calls that no engine can serve in time go where others are late already.

If each took the engine that is soonest, it would make those late that come behind it, and under
overload soon all; a few long prompts are enough for that. So they share the engines that have most
to read, at most MINORITY of all, and take the one that is soonest of these. The other engines stay
for calls that can still be in time, so that most are, whatever the load.

Some prompts are late whatever waits, as to read them alone takes too long. Where most of the work
is of that kind, there is no call to be protected from it: as large a share of the engines as of
the work is theirs.

No call waits without end for others' sake: calls that would wait OVERTAKEN targets longer there
than with the soonest engine make one engine more theirs, the one that has most to read of the
others. It fills up before the next does, so that the rest stays in time for as long as that can be.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import ceil, floor, inf
from typing import Final

from pdgate.protocols.call import Call
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.decision_trace import Rule, Step, Weighed
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.latency.model import reading
from pdgate.scheduling.partners import Partners
from pdgate.scheduling.pipeline.pipeline import Pipeline
from pdgate.scheduling.pipeline.scorers import (
    IN_TIME,
    TOKENS_PER_CALL,
    Best,
    Scorer,
    alone_seconds,
    first_token_seconds,
    idleness,
    in_flight,
    steps_quick,
    waiting_seconds,
)
from pdgate.scheduling.pipeline.shortlist import ALL, Shortlist
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.policy_context import PolicyContext

COMPUTING: Final = 1.0
"""What a second of an engine costs those behind this call, in seconds of its own wait. In simulations
of a trace, 0.5 to 2 serve as many in time, and more makes calls wait for caches (benchmarks/policies)."""

CLOSE: Final = 0.01
"""Of the target. What differs by less is equal: nothing is predicted that well, and an idle fleet
would be the one engine that happened to be quickest."""

CLOSE_SHARE: Final = 0.05
"""Of the least cost, which is equal as well: lines through what engines took differ by as much. With engines that do both a fifth more
calls of a chat were in time than with 0 (benchmarks/papers/distserve.py); in simulations of a trace and of five made-up loads 0.03 and 0.05
had 0.2 points more in time on average, and 0.1 as many, which is within what chance does."""

NEAR: Final = 0.05

MOVING: Final = 1e-4
"""Seconds for the KV of a token, 128 KB of it at 10 Gbit/s, between engines that are far from each
other; that on one host takes none is near enough."""

MINORITY: Final = 3 / 8
"""Of all engines. In simulations of a trace, with fewer late calls wait longer, and with more others
get late (benchmarks/policies)."""

OVERTAKEN: Final = 60
"""Times the target. At a third more than can be read, an hour of a trace had 30 % in time with 36,
60 % with 60, and 86 % without end, of which the late ones waited twice as long (benchmarks/policies)."""

FORGOTTEN: Final = 0.005
"""Of the work that has come, with each call: about the last two hundred count."""

NOTHING: Final[Mapping[str, int]] = {}


def slo(context: PolicyContext) -> Policy:
    if context.role is Role.DECODE:
        return Pipeline(scorers=[(1.0, idleness)], picker=Best(context.random), near=NEAR)
    return InTime(context)


class InTime(Policy):
    """For engines that read prompts; a pipeline in which each engine is asked for its time once.

    Attributes:
        passed_over: How often no engine could keep the target.
    """

    def __init__(self, context: PolicyContext) -> None:
        target = context.targets.ttft_seconds
        self.passed_over: Counter[str] = Counter()
        self.needs_prefixes = context.prefixes is not None
        self._target, self._in_time, self._close = target, IN_TIME * target, CLOSE * target
        self._prefixes = context.prefixes
        self._random = context.random
        self._shortlist = Shortlist(context.prefixes, context.random)
        self._late = LateTogether(context)
        self._steps = steps_quick(context) if context.role is Role.PLAIN else None

    def choose(
        self, call: Call, endpoints: Sequence[Endpoint], partners: Partners | None = None
    ) -> Endpoint:
        tokens = call.prompt_tokens
        matched = NOTHING if self._prefixes is None else self._prefixes.matched(call)
        self._late.came(tokens - max(matched.values()) if matched else tokens)
        if len(endpoints) > ALL:
            endpoints = self._shortlist.of(call, endpoints)
        in_time, least, kept = self._in_time - call.waited_seconds, inf, []
        uncached, of_its_own = tokens, inf
        for endpoint in endpoints:
            if matched:
                uncached = tokens - matched.get(endpoint.instance.id, 0)
            if not endpoint.calls:
                # Before it is asked, so that whoever asks again of this choice hears the same.
                endpoint.latency.overlooked += 1
            seconds, own_seconds = reading(endpoint, uncached)
            if seconds <= in_time:
                cost = seconds + COMPUTING * own_seconds
                if self._steps is not None:
                    cost += self._answering(call, endpoint, self._steps)
                if partners is not None:
                    of_its_own = min(of_its_own, cost)
                    cost -= tokens * MOVING * partners.worth(endpoint.instance) / partners.near
                kept.append((cost, uncached, endpoint))
                if cost < least:  # noqa: PLR1730 (a fifth of the time of min)
                    least = cost
        if not kept:
            self.passed_over["first_token_in_time"] += 1
            if call.waited_seconds:
                return _soonest(endpoints, tokens, matched)
            return self._late.choose(call, endpoints)
        close = CLOSE_SHARE * (least if partners is None else of_its_own)
        if close < self._close:  # noqa: PLR1730 (a fifth of the time of max)
            close = self._close
        most = least + close
        # More than any engine has to read, so the first one is taken.
        fewest, lightest, best = tokens + 1, 0, endpoints[0]
        equals: list[Endpoint] | None = None
        for cost, uncached, endpoint in kept:
            if cost <= most and uncached <= fewest:
                # `in_flight`, without a call of it for each endpoint of each call.
                load = endpoint.tokens + TOKENS_PER_CALL * (endpoint.calls + endpoint.beyond.calls)
                if uncached < fewest or load < lightest:
                    fewest, lightest, best, equals = uncached, load, endpoint, None
                elif load == lightest:
                    if equals is None:
                        equals = [best, endpoint]
                    else:
                        equals.append(endpoint)
        if equals is None:
            return best
        # As Best draws, without a function for it.
        return equals[floor(self._random.random() * len(equals))]

    def choose_ahead(
        self, call: Call, endpoints: Sequence[Endpoint], partners: Partners
    ) -> Endpoint:
        return self.choose(call, endpoints, partners)

    def _cost(self, call: Call, endpoint: Endpoint, uncached: int) -> tuple[float, float]:
        """As in `choose`, without what a partner is worth; and the seconds until the first token."""
        seconds, own_seconds = reading(endpoint, uncached)
        cost = seconds + COMPUTING * own_seconds
        if self._steps is not None:
            cost += self._answering(call, endpoint, self._steps)
        return cost, seconds

    def _answering(self, call: Call, endpoint: Endpoint, steps: Scorer) -> float:
        """What it costs that it also answers: a step of the target's length costs half the time for
        the first token."""
        return self._target * (1 - steps(call, endpoint))

    def explain(
        self, call: Call, endpoints: Sequence[Endpoint], peer: Instance | None = None
    ) -> Sequence[Weighed]:
        tokens = call.prompt_tokens
        matched = NOTHING if self._prefixes is None else self._prefixes.matched(call)
        said = []
        in_time = self._in_time - call.waited_seconds
        for endpoint in endpoints:
            cached = matched.get(endpoint.instance.id, 0)
            cost, seconds = self._cost(call, endpoint, tokens - cached)
            why = f"first token in {seconds:.3f} s, {cached} of {tokens} tokens cached"
            if seconds > in_time:
                # Such calls go where others are late already, or where it is soonest if it has waited.
                why = f"late: {why}, {in_time:g} s are in time"
            values = {
                "first_token_seconds": seconds,
                "own_seconds": reading(endpoint, tokens - cached)[1],
                "uncached_tokens": tokens - cached,
                "in_flight_tokens": in_flight(endpoint),
                "waiting_seconds": waiting_seconds(endpoint),
            }
            said.append(Weighed(endpoint.instance.id, -cost, why, values))
        return said

    def explain_ahead(
        self, call: Call, endpoints: Sequence[Endpoint], partners: Partners
    ) -> Sequence[Weighed]:
        of_worth = call.prompt_tokens * MOVING / partners.near
        return partners.told(self.explain(call, endpoints), endpoints, of_worth)

    def rule(self, call: Call, endpoints: Sequence[Endpoint], peer: Instance | None = None) -> Rule:
        tokens = call.prompt_tokens
        matched = NOTHING if self._prefixes is None else self._prefixes.matched(call)
        in_time, least = self._in_time - call.waited_seconds, inf
        for endpoint in endpoints:
            cost, seconds = self._cost(
                call, endpoint, tokens - matched.get(endpoint.instance.id, 0)
            )
            if seconds <= in_time:
                least = min(least, cost)
        if least < inf:
            return (
                Step("first_token_seconds", at_most=in_time),
                Step("score", most=True, within=max(self._close, CLOSE_SHARE * least)),
                Step("uncached_tokens"),
                Step("in_flight_tokens"),
            )
        if call.waited_seconds:
            return (Step("first_token_seconds"),)
        return self._late.rule(call, endpoints)


def _soonest(endpoints: Sequence[Endpoint], tokens: int, matched: Mapping[str, int]) -> Endpoint:
    """Where a prompt of so many tokens is read first."""
    least, best = inf, endpoints[0]
    for endpoint in endpoints:
        seconds, _ = reading(endpoint, tokens - matched.get(endpoint.instance.id, 0))
        if seconds < least:
            least, best = seconds, endpoint
    return best


class LateTogether(Policy):
    def __init__(self, context: PolicyContext) -> None:
        self._target = context.targets.ttft_seconds
        self._overtaken = OVERTAKEN * context.targets.ttft_seconds
        self._prefixes = context.prefixes
        self._seconds = first_token_seconds(context)
        # Tokens to be read, of the latest calls.
        self._work = self._hopeless = 0.0

    def came(self, uncached: int) -> None:
        """Each call is to be counted, late or not, before it is chosen for.

        `uncached`: of its prompt, where most of it is cached.
        """
        self._work += uncached - FORGOTTEN * self._work
        if self._hopeless:
            self._hopeless -= FORGOTTEN * self._hopeless

    def choose(self, call: Call, endpoints: Sequence[Endpoint]) -> Endpoint:
        uncached = self._uncached(call)
        if all(alone_seconds(endpoint, uncached) > self._target for endpoint in endpoints):
            self._hopeless += uncached
        by_wait, best, _ = self._of(call, endpoints)
        return by_wait[best]

    def rule(self, call: Call, endpoints: Sequence[Endpoint], peer: Instance | None = None) -> Rule:
        theirs = self._of(call, endpoints)[2]
        late = Step("waiting_seconds", most=True, count=theirs)
        return (late, Step("first_token_seconds"), Step("waiting_seconds", most=True, count=1))

    def _of(self, call: Call, endpoints: Sequence[Endpoint]) -> tuple[list[Endpoint], int, int]:
        """All by what they have to read, which of them is best, and how many are for late calls."""
        by_wait = sorted(endpoints, key=waiting_seconds, reverse=True)
        seconds = [self._seconds(call, endpoint) for endpoint in by_wait]
        most = min(seconds) + self._overtaken
        theirs = self._engines(len(by_wait))
        best = min(range(theirs), key=seconds.__getitem__)
        while seconds[best] > most:
            if seconds[theirs] < seconds[best]:
                best = theirs
            theirs += 1
        return by_wait, best, theirs

    def _uncached(self, call: Call) -> int:
        if self._prefixes is None:
            return call.prompt_tokens
        return call.prompt_tokens - max(self._prefixes.matched(call).values(), default=0)

    def _engines(self, count: int) -> int:
        """For late calls."""
        hopeless = self._hopeless / self._work if self._work else 0.0
        return max(1, int(count * MINORITY), min(count, ceil(count * hopeless)))
