"""Filters and scorers for all policies alike, and how long callers would wait.

A score is 1 for the best that can be and falls towards 0. Loads and times have no end, so they
fall as `falling` does: half at an amount that is a lot, a third at twice as much, and so on.

    first token     what is to be read there, and what the engine has not cached of this prompt
    between tokens  a step with one answer more, over all that is in its context

Where nothing has been seen of an engine, nor of any like it, prompts count as if all read equally
fast, and answers as if each took its share of STEP_SECONDS.
"""

from collections.abc import Callable
from typing import Final

from pdgate.protocols.call import Call
from pdgate.scheduling.account import calls_there, kv_free_after
from pdgate.scheduling.candidate import Candidate
from pdgate.scheduling.pipeline.pipeline import Scorer
from pdgate.scheduling.policy_context import PolicyContext

TOKENS_PER_CALL: Final = 256
"""An answer, whose length is unknown."""

MANY_TOKENS: Final = 100_000
"""In flight at an engine that says nothing of how many it can hold."""

TOKENS_PER_SECOND: Final = 10_000
"""Of prompts, where no engine has shown yet how fast it is."""

IN_TIME: Final = 0.85
"""Of the target for a first token, what reading may take: then KV has to move, and decode has to
begin; and what is expected is not what will be."""

STEP_SECONDS: Final = 0.02
"""Of decode, and as much again for every STEP_CALLS and STEP_TOKENS in it."""
STEP_CALLS: Final = 64
STEP_TOKENS: Final = 200_000

Seconds = Callable[[Call, Candidate], float]


def falling(amount: float, half: float) -> float:
    """1 for nothing, one half at `half`."""
    return half / (half + amount)


# Of memory and load.


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


# Of caches.


def cached_share(context: PolicyContext) -> Scorer:
    """Of the call's prompt, what the engine need not compute."""
    return nothing_cached if context.prefixes is None else context.prefixes.cached_share


def nothing_cached(call: Call, candidate: Candidate) -> float:
    return 0.0


# Of time.


class _Quickness:
    """Scorer of a time.

    It has a name, as functions do, and a compiled function within another has not.
    """

    def __init__(self, name: str, seconds: Seconds, half: float) -> None:
        self.__name__ = name
        self._seconds = seconds
        self._half = half

    def __call__(self, call: Call, candidate: Candidate) -> float:
        return falling(self._seconds(call, candidate), self._half)


def first_token_soon(context: PolicyContext) -> Scorer:
    return _Quickness("soon", first_token_seconds(context), context.targets.ttft_seconds)


def steps_quick(context: PolicyContext) -> Scorer:
    return _Quickness("quick", step_seconds, context.targets.tpot_seconds)


def reading(candidate: Candidate, uncached_tokens: int) -> tuple[float, float]:
    """Seconds until it has read what it has to read already, and this prompt; and of these, those
    in which it reads this prompt."""
    tokens = candidate.unread_tokens + candidate.beyond.unread_tokens + uncached_tokens
    squares = 1.0 * uncached_tokens * uncached_tokens
    if candidate.unread_tokens:
        alone = candidate.shared is None
        squares += candidate.own_unread_squares if alone else candidate.unread_squares
    expected = candidate.latency.prefill_seconds(tokens, squares)
    seconds = tokens / TOKENS_PER_SECOND if expected is None else expected
    return seconds, seconds * uncached_tokens / tokens if tokens else 0.0


def reading_seconds(candidate: Candidate, uncached_tokens: int) -> float:
    """Until it has read what it has to read already, and this prompt."""
    return reading(candidate, uncached_tokens)[0]


def waiting_seconds(candidate: Candidate) -> float:
    return reading_seconds(candidate, 0)


def alone_seconds(candidate: Candidate, uncached_tokens: int) -> float:
    """For a prompt that need not wait."""
    expected = candidate.latency.prefill_seconds(uncached_tokens, uncached_tokens**2)
    return uncached_tokens / TOKENS_PER_SECOND if expected is None else expected


def first_token_seconds(context: PolicyContext) -> Seconds:
    share = cached_share(context)

    def seconds(call: Call, candidate: Candidate) -> float:
        tokens = call.prompt_tokens
        return reading_seconds(candidate, tokens - round(tokens * share(call, candidate)))

    return seconds


def step_seconds(call: Call, candidate: Candidate) -> float:
    batch = calls_there(candidate) + 1
    context = candidate.tokens + max(0, candidate.beyond.kv_tokens) + call.prompt_tokens
    expected = candidate.latency.step_seconds(batch, context)
    if expected is None:
        return STEP_SECONDS * (1 + batch / STEP_CALLS + context / STEP_TOKENS)
    return expected
