"""The first token in time for as many callers as possible.

    cost = seconds until the first token there            what this caller waits
         + seconds that reading the prompt takes there    what all who come after it wait

Whoever costs least gets the call. So a cached prompt is worth twice the time that it saves the
caller, and never a longer wait than that.

Overload is when nobody can keep the target, and a prompt of nothing would have to wait for LATE of it
everywhere. Then the call is late in any case, and makes others late wherever it goes: it goes where they
are late already. Without that all engines have the same queue, as long as it takes, and nobody is in time;
with it few wait very long, until there is room again. A limit on how long calls may wait
(docs/operations/admission.md) spares them that.

Decode engines are chosen by how much they have in flight (least_loaded).
"""

from collections.abc import Sequence
from typing import Final

from pdgate.protocols.call import Call
from pdgate.protocols.instance import Role
from pdgate.scheduling.account import unread_tokens_there
from pdgate.scheduling.candidate import Candidate
from pdgate.scheduling.policies.least_loaded import LeastLoaded
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.sentence.shortlist import Shortlist
from pdgate.scheduling.sentence.words import TOKENS_PER_SECOND
from pdgate.scheduling.surroundings import Surroundings

LATE: Final = 0.2
"""Of the target. With less, a long prompt alone looks like overload."""

IN_TIME: Final = 0.9
"""Of the target: what is expected later than that may well be late."""


class OnTime(Policy):
    needs_prefixes = True

    def __init__(self, around: Surroundings) -> None:
        self._prefixes = around.prefixes
        self._in_time_seconds = IN_TIME * around.targets.ttft_seconds
        self._late_seconds = LATE * around.targets.ttft_seconds
        self._random = around.random
        self._shortlist = Shortlist(around.prefixes, around.random)

    def choose(self, call: Call, candidates: Sequence[Candidate]) -> Candidate:
        cached = {} if self._prefixes is None else self._prefixes.matched(call)
        some = self._shortlist.of(call, candidates)
        # Equals take turns, or an idle fleet would be one busy engine.
        first = self._random.randrange(len(some))
        cheapest = latest = some[first]
        least_cost = soonest = least_wait = float("inf")
        longest_wait = -1.0
        for one in (*some[first:], *some[:first]):
            wait, whole = _seconds(one, call.prompt_tokens - cached.get(one.instance.id, 0))
            cost = whole + (whole - wait)
            if cost < least_cost:
                cheapest, least_cost = one, cost
            if wait > longest_wait:
                latest, longest_wait = one, wait
            soonest, least_wait = min(soonest, whole), min(least_wait, wait)
        if soonest > self._in_time_seconds and least_wait >= self._late_seconds:
            return latest
        return cheapest


def on_time(around: Surroundings) -> Policy:
    return LeastLoaded.made(around) if around.role is Role.DECODE else OnTime(around)


def _seconds(one: Candidate, uncached_tokens: int) -> tuple[float, float]:
    """Until it has read what waits there, and until it has read this prompt, too."""
    unread, squares = unread_tokens_there(one), one.unread_squares
    expect = one.predicts.prefill_seconds
    whole = expect(unread + uncached_tokens, squares + uncached_tokens * uncached_tokens)
    if whole is None:
        return unread / TOKENS_PER_SECOND, (unread + uncached_tokens) / TOKENS_PER_SECOND
    wait = expect(unread, squares) if unread else 0.0
    return min(wait or 0.0, whole), whole
