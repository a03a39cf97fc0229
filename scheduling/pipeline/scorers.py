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
from pdgate.scheduling.endpoint import Endpoint
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

Seconds = Callable[[Call, Endpoint], float]


def falling(amount: float, half: float) -> float:
    """1 for nothing, one half at `half`."""
    return half / (half + amount)


# Of memory and load.


def fits(call: Call, endpoint: Endpoint) -> bool:
    """Its KV has room for the call, behind all that is on its way there."""
    free = kv_free_after(call, endpoint)
    return free is None or free >= 0


def room(call: Call, endpoint: Endpoint) -> float:
    """Of its KV, what is free once it has the call and all that is on its way there."""
    free = kv_free_after(call, endpoint)
    if free is not None:
        return max(0.0, free)
    return falling(in_flight(endpoint) + call.prompt_tokens, MANY_TOKENS)


def in_flight(endpoint: Endpoint) -> int:
    """Tokens of prompts, and of answers as far as they can be guessed."""
    return endpoint.tokens + (endpoint.calls + endpoint.beyond.calls) * TOKENS_PER_CALL


def idleness(call: Call, endpoint: Endpoint) -> float:
    # `falling(in_flight(endpoint), MANY_TOKENS)`, in one: most engines are chosen by it.
    calls = endpoint.calls + endpoint.beyond.calls
    return MANY_TOKENS / (MANY_TOKENS + endpoint.tokens + calls * TOKENS_PER_CALL)


# Of caches.


def cached_share(context: PolicyContext) -> Scorer:
    """Of the call's prompt, what the engine need not compute."""
    return nothing_cached if context.prefixes is None else context.prefixes.cached_share


def nothing_cached(call: Call, endpoint: Endpoint) -> float:
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

    def __call__(self, call: Call, endpoint: Endpoint) -> float:
        return falling(self._seconds(call, endpoint), self._half)


def first_token_soon(context: PolicyContext) -> Scorer:
    return _Quickness("soon", first_token_seconds(context), context.targets.ttft_seconds)


def steps_quick(context: PolicyContext) -> Scorer:
    return _Quickness("quick", step_seconds, context.targets.tpot_seconds)


def reading(endpoint: Endpoint, uncached_tokens: int) -> tuple[float, float]:
    """Seconds until it has read what it has to read already, and this prompt; and of these, those
    in which it reads this prompt."""
    tokens = endpoint.unread_tokens + endpoint.beyond.unread_tokens + uncached_tokens
    squares = 1.0 * uncached_tokens * uncached_tokens
    if endpoint.unread_tokens:
        alone = endpoint.shared is None
        squares += endpoint.own_unread_squares if alone else endpoint.unread_squares
    expected = endpoint.latency.prefill_seconds(tokens, squares)
    seconds = tokens / TOKENS_PER_SECOND if expected is None else expected
    return seconds, seconds * uncached_tokens / tokens if tokens else 0.0


def reading_seconds(endpoint: Endpoint, uncached_tokens: int) -> float:
    """Until it has read what it has to read already, and this prompt."""
    return reading(endpoint, uncached_tokens)[0]


def waiting_seconds(endpoint: Endpoint) -> float:
    return reading_seconds(endpoint, 0)


def alone_seconds(endpoint: Endpoint, uncached_tokens: int) -> float:
    """For a prompt that need not wait."""
    expected = endpoint.latency.prefill_seconds(uncached_tokens, uncached_tokens**2)
    return uncached_tokens / TOKENS_PER_SECOND if expected is None else expected


def first_token_seconds(context: PolicyContext) -> Seconds:
    share = cached_share(context)

    def seconds(call: Call, endpoint: Endpoint) -> float:
        tokens = call.prompt_tokens
        return reading_seconds(endpoint, tokens - round(tokens * share(call, endpoint)))

    return seconds


def step_seconds(call: Call, endpoint: Endpoint) -> float:
    batch = calls_there(endpoint) + 1
    context = endpoint.tokens + max(0, endpoint.beyond.kv_tokens) + call.prompt_tokens
    expected = endpoint.latency.step_seconds(batch, context)
    if expected is None:
        return STEP_SECONDS * (1 + batch / STEP_CALLS + context / STEP_TOKENS)
    return expected
