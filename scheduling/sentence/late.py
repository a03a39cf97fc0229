"""Calls that no engine can serve in time go where others are late already.

If each took the engine that is soonest, it would make those late that come behind it, and under
overload soon all; a few long prompts are enough for that. So they share the engines that have most
to read, at most MINORITY of all, and take the one that is soonest of these. The other engines stay
for calls that can still be in time, so that most are, whatever the load.

Some prompts are late whatever waits, as to read them alone takes too long. Where most of the work
is of that kind, there is nobody to be protected from it: as large a share of the engines as of
the work is theirs.

Nobody waits without end for others' sake: who would wait OVERTAKEN targets longer there than with
the soonest engine makes one engine more theirs, the one that has most to read of the others. It
fills up before the next does, so that the rest stays in time for as long as that can be.
"""

from collections.abc import Sequence
from math import ceil
from typing import Final

from pdgate.protocols.call import Call
from pdgate.scheduling.candidate import Candidate
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.sentence.times import alone_seconds, first_token_seconds, waiting_seconds
from pdgate.scheduling.surroundings import Surroundings

MINORITY: Final = 3 / 8
"""Of all engines. In simulations of a trace, with fewer late calls wait longer, and with more others
get late (benchmarks/policies)."""

OVERTAKEN: Final = 60
"""Times the target. At a third more than can be read, an hour of a trace had 30 % in time with 36,
60 % with 60, and 86 % without end, of which the late ones waited twice as long (benchmarks/policies)."""

FORGOTTEN: Final = 0.005
"""Of the work that has come, with each call: about the last two hundred count."""


class LateTogether(Policy):
    def __init__(self, around: Surroundings) -> None:
        self._target = around.targets.ttft_seconds
        self._overtaken = OVERTAKEN * around.targets.ttft_seconds
        self._prefixes = around.prefixes
        self._seconds = first_token_seconds(around)
        # Tokens to be read, of the latest calls.
        self._work = self._hopeless = 0.0

    def came(self, uncached: int) -> None:
        """Each call is to be counted, late or not, before it is chosen for.

        `uncached`: of its prompt, where most of it is cached.
        """
        self._work += uncached - FORGOTTEN * self._work
        if self._hopeless:
            self._hopeless -= FORGOTTEN * self._hopeless

    def choose(self, call: Call, candidates: Sequence[Candidate]) -> Candidate:
        uncached = self._uncached(call)
        if all(alone_seconds(candidate, uncached) > self._target for candidate in candidates):
            self._hopeless += uncached
        by_wait = sorted(candidates, key=waiting_seconds, reverse=True)
        seconds = [self._seconds(call, candidate) for candidate in by_wait]
        most = min(seconds) + self._overtaken
        theirs = self._engines(len(by_wait))
        best = min(range(theirs), key=seconds.__getitem__)
        while seconds[best] > most:
            if seconds[theirs] < seconds[best]:
                best = theirs
            theirs += 1
        return by_wait[best]

    def _uncached(self, call: Call) -> int:
        if self._prefixes is None:
            return call.prompt_tokens
        return call.prompt_tokens - max(self._prefixes.matched(call).values(), default=0)

    def _engines(self, count: int) -> int:
        """For late calls."""
        hopeless = self._hopeless / self._work if self._work else 0.0
        return max(1, int(count * MINORITY), min(count, ceil(count * hopeless)))
