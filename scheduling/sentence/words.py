"""What is said of an engine, for all policies alike: words that keep, and words that prefer.

A preference is 1 for the best that can be and falls towards 0. Loads and times have no end, so
they fall as `falling` does: half at an amount that is a lot, a third at twice as much, and so on.
"""

from typing import Final

from pdgate.protocols.call import Call
from pdgate.scheduling.account import kv_free_after
from pdgate.scheduling.candidate import Candidate
from pdgate.scheduling.sentence.sentence import Prefer
from pdgate.scheduling.surroundings import Surroundings

TOKENS_PER_CALL: Final = 256
"""An answer, whose length nobody knows."""

MANY_TOKENS: Final = 100_000
"""In flight at an engine that says nothing of how many it can hold."""

TOKENS_PER_SECOND: Final = 10_000
"""Of prompts, where no engine has shown yet how fast it is."""


def falling(amount: float, half: float) -> float:
    """1 for nothing, one half at `half`."""
    return half / (half + amount)


def fits(call: Call, candidate: Candidate) -> bool:
    """Its KV has room for the call, behind all that is on its way there."""
    free = kv_free_after(call, candidate)
    return free is None or free >= 0


def room(call: Call, candidate: Candidate) -> float:
    """Of its KV, what is free once it has the call and all that is on its way there."""
    free = kv_free_after(call, candidate)
    if free is not None:
        return max(0.0, free)
    return falling(in_flight(candidate) + call.prompt_tokens, MANY_TOKENS)


def in_flight(candidate: Candidate) -> int:
    """Tokens of prompts, and of answers as far as they can be guessed."""
    return candidate.tokens + (candidate.calls + candidate.beyond.calls) * TOKENS_PER_CALL


def idleness(call: Call, candidate: Candidate) -> float:
    # `falling(in_flight(candidate), MANY_TOKENS)`, in one: most engines are chosen by it.
    calls = candidate.calls + candidate.beyond.calls
    return MANY_TOKENS / (MANY_TOKENS + candidate.tokens + calls * TOKENS_PER_CALL)


def cached_share(around: Surroundings) -> Prefer:
    """Of the call's prompt, what the engine need not compute."""
    return nothing_cached if around.prefixes is None else around.prefixes.cached_share


def nothing_cached(call: Call, candidate: Candidate) -> float:
    return 0.0
