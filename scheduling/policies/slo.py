"""Who can keep what callers were promised, and of those whoever it costs least.

    prefill, plain
        keep        first token in time
        prefer      a cached prompt, which leaves time to others; then who has time to spare
        otherwise   who cannot be in time waits where others are late already (sentence/late.py)
    decode
        prefer      who has least in flight, and is near

A call that will be late is late by choice here, and never refused: that is for who limits calls
(scheduling/admission). `passed_over` says how many there were.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from pdgate.protocols.call import Call
from pdgate.protocols.instance import Role
from pdgate.scheduling.candidate import Candidate
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.sentence import Best, Sentence
from pdgate.scheduling.sentence.late import LateTogether
from pdgate.scheduling.sentence.shortlist import Shortlist
from pdgate.scheduling.sentence.times import (
    IN_TIME,
    reading_seconds,
    steps_quick,
)
from pdgate.scheduling.sentence.words import falling, idleness
from pdgate.scheduling.surroundings import Surroundings

CACHED: Final = 4.0
"""Times what it is worth to have a first token at once and not just in time, twice."""

NEAR: Final = 0.05

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
        self._target, self._in_time = target, IN_TIME * target
        self._prefixes = around.prefixes
        self._random = around.random
        self._shortlist = Shortlist(around.prefixes, around.random)
        self._late = LateTogether(around)
        self._steps = steps_quick(around) if around.role is Role.PLAIN else None

    def choose(self, call: Call, candidates: Sequence[Candidate]) -> Candidate:
        self._late.came(call)
        tokens = call.prompt_tokens
        matched = NOTHING if self._prefixes is None else self._prefixes.matched(call)
        per_token = CACHED / max(1, tokens)
        target, in_time, steps = self._target, self._in_time, self._steps
        most, best = 0.0, []
        looked_at = self._shortlist.of(call, candidates)
        for candidate in looked_at:
            cached = matched.get(candidate.instance.id, 0)
            seconds = reading_seconds(candidate, tokens - cached)
            if seconds > in_time:
                continue
            score = cached * per_token + falling(seconds, target)
            if steps is not None:
                score += steps(call, candidate)
            if score > most:
                most, best = score, [candidate]
            elif score == most:
                best.append(candidate)
        if not best:
            self.passed_over["first_token_in_time"] += 1
            return self._late.choose(call, looked_at)
        return best[0] if len(best) == 1 else self._random.choice(best)
