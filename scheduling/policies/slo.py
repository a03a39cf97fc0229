"""Who can keep what callers were promised, and of those whoever it costs least.

    prefill, plain
        keep        first token in time
        prefer      who costs callers least: seconds until this first token, and as much again for
                    those that the engine computes for it, as whoever comes behind waits for them
                    and, where engines say where they are, until KV is at the best partner
        of equals   who has most of the prompt cached, then who has least in flight
        otherwise   who cannot be in time waits where others are late already (sentence/late.py)
    decode
        prefer      who has least in flight, and is near

So a cached prompt is worth a wait, but no longer one than twice what it saves: were it worth any
that is in time, calls that all begin alike would queue at one engine of an idle fleet.

A call that will be late is late by choice here, and never refused: that is for who limits calls
(scheduling/admission). `passed_over` says how many there were.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from typing import Final

from pdgate.protocols.call import Call
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.candidate import Candidate
from pdgate.scheduling.choice import Weighed
from pdgate.scheduling.partners import Partners
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.sentence import Best, Sentence
from pdgate.scheduling.sentence.late import LateTogether
from pdgate.scheduling.sentence.pick import drawn
from pdgate.scheduling.sentence.sentence import Prefer
from pdgate.scheduling.sentence.shortlist import ALL, Shortlist
from pdgate.scheduling.sentence.times import (
    IN_TIME,
    reading,
    steps_quick,
)
from pdgate.scheduling.sentence.words import idleness, in_flight
from pdgate.scheduling.surroundings import Surroundings

COMPUTING: Final = 1.0
"""What a second of an engine costs those behind this call, in seconds of its own wait. In simulations
of a trace, 0.5 to 2 serve as many in time, and more makes calls wait for caches (benchmarks/policies)."""

CLOSE: Final = 0.01
"""Of the target. What differs by less is equal: nothing is predicted that well, and an idle fleet
would be the one engine that happened to be quickest."""

NEAR: Final = 0.05

MOVING: Final = 1e-4
"""Seconds for the KV of a token, 128 KB of it at 10 Gbit/s, between engines that are far from each
other; that on one host takes none is near enough."""

NOTHING: Final[Mapping[str, int]] = {}


def slo(around: Surroundings) -> Policy:
    if around.role is Role.DECODE:
        return Sentence(
            prefer=[(1.0, idleness)],
            choose=Best(around.random),
            near=NEAR,
        )
    return InTime(around)


class InTime(Policy):
    """For engines that read prompts; a sentence in which each engine is asked for its time once.

    Attributes:
        passed_over: How often nobody could keep the target.
    """

    def __init__(self, around: Surroundings) -> None:
        target = around.targets.ttft_seconds
        self.passed_over: Counter[str] = Counter()
        self.needs_prefixes = around.prefixes is not None
        self._target, self._in_time, self._close = target, IN_TIME * target, CLOSE * target
        self._prefixes = around.prefixes
        self._random = around.random
        self._shortlist = Shortlist(around.prefixes, around.random)
        self._late = LateTogether(around)
        self._steps = steps_quick(around) if around.role is Role.PLAIN else None

    def choose(
        self, call: Call, candidates: Sequence[Candidate], partners: Partners | None = None
    ) -> Candidate:
        tokens = call.prompt_tokens
        matched = NOTHING if self._prefixes is None else self._prefixes.matched(call)
        self._late.came(tokens - max(matched.values()) if matched else tokens)
        if len(candidates) > ALL:
            candidates = self._shortlist.of(call, candidates)
        in_time, least, kept = self._in_time, inf, []
        uncached = tokens
        for candidate in candidates:
            if matched:
                uncached = tokens - matched.get(candidate.instance.id, 0)
            seconds, own_seconds = reading(candidate, uncached)
            if seconds <= in_time:
                cost = seconds + COMPUTING * own_seconds
                if self._steps is not None:
                    cost += self._answering(call, candidate, self._steps)
                if partners is not None:
                    cost -= tokens * MOVING * partners.worth(candidate.instance) / partners.near
                kept.append((cost, uncached, candidate))
                if cost < least:  # noqa: PLR1730 (a fifth of the time of min)
                    least = cost
        if not kept:
            self.passed_over["first_token_in_time"] += 1
            return self._late.choose(call, candidates)
        most = least + self._close
        # More than anybody has to read, so the first one is taken.
        fewest, lightest, best = tokens + 1, 0, candidates[0]
        equals: list[Candidate] | None = None
        for cost, uncached, candidate in kept:
            if cost <= most and uncached <= fewest:
                load = in_flight(candidate)
                if uncached < fewest or load < lightest:
                    fewest, lightest, best, equals = uncached, load, candidate, None
                elif load == lightest:
                    if equals is None:
                        equals = [best, candidate]
                    else:
                        equals.append(candidate)
        return best if equals is None else drawn(self._random, equals)

    def choose_ahead(
        self, call: Call, candidates: Sequence[Candidate], partners: Partners
    ) -> Candidate:
        return self.choose(call, candidates, partners)

    def _answering(self, call: Call, candidate: Candidate, steps: Prefer) -> float:
        """What it costs that it also answers: a step of the target's length costs half the time for
        the first token."""
        return self._target * (1 - steps(call, candidate))

    def explain(
        self, call: Call, candidates: Sequence[Candidate], peer: Instance | None = None
    ) -> Sequence[Weighed]:
        tokens = call.prompt_tokens
        matched = NOTHING if self._prefixes is None else self._prefixes.matched(call)
        said = []
        for candidate in candidates:
            cached = matched.get(candidate.instance.id, 0)
            seconds, own_seconds = reading(candidate, tokens - cached)
            cost = seconds + COMPUTING * own_seconds
            if self._steps is not None:
                cost += self._answering(call, candidate, self._steps)
            why = f"first token in {seconds:.3f} s, {cached} of {tokens} tokens cached"
            if seconds > self._in_time:
                # Such calls go where others are late already (sentence/late.py).
                why = f"late: {why}, {self._in_time:g} s are in time"
            said.append(Weighed(candidate.instance.id, -cost, why))
        return said
