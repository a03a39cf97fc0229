"""Parts of pipelines, for all policies alike: filters, scorers, pickers; and how long callers would wait.

A score is 1 for the best that can be and falls towards 0. Loads and times have no end, so they
fall as `falling` does: half at an amount that is a lot, a third at twice as much, and so on.

    first token     what is to be read there, and what the engine has not cached of this prompt
    between tokens  a step with one answer more, over all that is in its context

Where nothing has been seen of an engine, nor of any like it, prompts count as if all read equally
fast, and answers as if each took its share of STEP_SECONDS.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import exp, floor, inf
from random import Random
from typing import Final

from mypy_extensions import mypyc_attr

from pdgate.protocols.call import Call
from pdgate.scheduling.account import calls_there, kv_free_after
from pdgate.scheduling.decision_trace import HIGHEST_SCORE, Rule
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.latency.model import TOKENS_PER_SECOND, reading
from pdgate.scheduling.policy_context import PolicyContext

TOKENS_PER_CALL: Final = 256
"""An answer, whose length is unknown."""

MANY_TOKENS: Final = 100_000
"""In flight at an engine that says nothing of how many it can hold."""

IN_TIME: Final = 0.85
"""Of the target for a first token, what reading may take: then KV has to move, and decode has to
begin; and what is expected is not what will be."""

STEP_SECONDS: Final = 0.02
"""Of decode, and as much again for every STEP_CALLS and STEP_TOKENS in it."""
STEP_CALLS: Final = 64
STEP_TOKENS: Final = 200_000

Filter = Callable[[Call, Endpoint], bool]
Scorer = Callable[[Call, Endpoint], float]
Seconds = Callable[[Call, Endpoint], float]
Score = Callable[[Call, Endpoint], float]
"""How much one is preferred, all in all; the more the better."""


def falling(amount: float, half: float) -> float:
    """1 for nothing, one half at `half`."""
    return half / (half + amount)


# Of memory and load.


def fits(call: Call, endpoint: Endpoint) -> bool:
    """Its KV has room for the call, behind all that is on its way there."""
    free = kv_free_after(call, endpoint)
    return free is None or free >= 0


def room(call: Call, endpoint: Endpoint) -> float:
    """Share of its KV that is free once it has the call and all that is on its way there."""
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
    """Scorer by the share of the call's prompt that the engine need not compute."""
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


def reading_seconds(endpoint: Endpoint, uncached_tokens: int) -> float:
    """Seconds until it has read what it has to read already, and this prompt."""
    return reading(endpoint, uncached_tokens)[0]


def waiting_seconds(endpoint: Endpoint) -> float:
    return reading_seconds(endpoint, 0)


def alone_seconds(endpoint: Endpoint, uncached_tokens: int) -> float:
    """Seconds for a prompt that need not wait."""
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


# Pickers, the last step. Plugins may have their own: compiled classes let interpreted ones inherit from
# them only if they say so.


@mypyc_attr(allow_interpreted_subclasses=True)
class Picker(ABC):
    """The last step: one of those that the filters left, by their scores."""

    def __init__(self, random: Random | None = None) -> None:
        self.random = random or Random()

    @abstractmethod
    def among(self, call: Call, kept: Sequence[Endpoint], score: Score) -> Endpoint:
        """Pick of one at least. Those that are not scored cost nothing."""

    def rule(self) -> Rule:
        """What a reader of the scores can say of its choice; nothing of one that draws lots by them."""
        return ()


@mypyc_attr(allow_interpreted_subclasses=True)
class Best(Picker):
    """Equals are drawn, or an idle fleet would be one busy engine."""

    def among(self, call: Call, kept: Sequence[Endpoint], score: Score) -> Endpoint:
        most, best = -inf, kept[0]
        equals: list[Endpoint] | None = None
        for one in kept:
            its = score(call, one)
            if its > most:
                most, best, equals = its, one, None
            elif its == most:
                if equals is None:
                    equals = [best, one]
                else:
                    equals.append(one)
        if equals is None:
            return best
        # Draw as `random.choice` does, which is two functions of Python and draws until it fits.
        return equals[floor(self.random.random() * len(equals))]

    def rule(self) -> Rule:
        return HIGHEST_SCORE


@mypyc_attr(allow_interpreted_subclasses=True)
class PowerOfTwo(Picker):
    """The better of two that are drawn: several gateways do not run to the same engine."""

    def among(self, call: Call, kept: Sequence[Endpoint], score: Score) -> Endpoint:
        if len(kept) == 1:
            return kept[0]
        one, other = self.random.sample(kept, 2)
        return one if score(call, one) >= score(call, other) else other


@mypyc_attr(allow_interpreted_subclasses=True)
class Softmax(Picker):
    """Picker by lot, where an endpoint that is better by `temperature` has e times as many chances."""

    def __init__(self, temperature: float, random: Random | None = None) -> None:
        """Raises ValueError unless the temperature is above 0."""
        super().__init__(random)
        if not temperature > 0:
            raise ValueError(f"a temperature must be above 0, not {temperature}")
        self._temperature = temperature

    def among(self, call: Call, kept: Sequence[Endpoint], score: Score) -> Endpoint:
        scores = [score(call, one) for one in kept]
        most = max(scores)
        chances = [exp((of - most) / self._temperature) for of in scores]
        return self.random.choices(kept, chances)[0]
