"""Who can keep what callers were promised, and of those whoever it costs least.

    prefill, plain
        keep        first token in time
        prefer      a cached prompt, which leaves time to others; then who has time to spare
        otherwise   who cannot be in time waits where others are late already (sentence/late.py)
    decode
        keep        fits, and steps in time
        prefer      quick steps, and being near

A call that will be late is late by choice here, and never refused: that is for who limits calls
(scheduling/admission). `passed_over` says how many there were.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from pdgate.protocols.call import Call
from pdgate.protocols.instance import Role
from pdgate.scheduling.candidate import Candidate
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.sentence import Best, Sentence
from pdgate.scheduling.sentence.late import LateTogether
from pdgate.scheduling.sentence.times import (
    first_token_in_time,
    first_token_soon,
    steps_in_time,
    steps_quick,
)
from pdgate.scheduling.sentence.words import cached_share, fits
from pdgate.scheduling.surroundings import Surroundings

CACHED: Final = 4.0
"""Times what it is worth to have a first token at once and not just in time, twice."""

NEAR: Final = 0.05


def slo(around: Surroundings) -> Policy:
    if around.role is Role.DECODE:
        return Sentence(
            keep=[fits, steps_in_time(around)],
            prefer=[(1.0, steps_quick(around))],
            choose=Best(around.random),
            near=NEAR,
        )
    return InTime(around)


class InTime(Policy):
    """For engines that read prompts."""

    def __init__(self, around: Surroundings) -> None:
        prefer = [(CACHED, cached_share(around)), (1.0, first_token_soon(around))]
        if around.role is Role.PLAIN:
            prefer.append((1.0, steps_quick(around)))
        self._late = LateTogether(around)
        self._sentence = Sentence(
            keep=[first_token_in_time(around)],
            prefer=prefer,
            choose=Best(around.random),
            otherwise=self._late,
            prefixes=around.prefixes,
        )
        self.needs_prefixes = self._sentence.needs_prefixes

    @property
    def passed_over(self) -> Counter[str]:
        return self._sentence.passed_over

    def choose(self, call: Call, candidates: Sequence[Candidate]) -> Candidate:
        self._late.came(call)
        return self._sentence.choose(call, candidates)
