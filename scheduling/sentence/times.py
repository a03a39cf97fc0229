"""How long callers would wait at an engine, as far as it has shown.

    first token     what is to be read there, and what the engine has not cached of this prompt
    between tokens  a step with one answer more, over all that is in its context

Where nothing has been seen of an engine, nor of any like it, prompts count as if all read equally
fast, and answers as if each took its share of STEP_SECONDS.
"""

from collections.abc import Callable
from typing import Final

from pdgate.protocols.call import Call
from pdgate.scheduling.account import calls_there
from pdgate.scheduling.candidate import Candidate
from pdgate.scheduling.sentence.sentence import Prefer
from pdgate.scheduling.sentence.words import TOKENS_PER_SECOND, cached_share, falling
from pdgate.scheduling.surroundings import Surroundings

IN_TIME: Final = 0.85
"""Of the target for a first token, what reading may take: then KV has to move, and decode has to
begin; and what is expected is not what will be."""

Seconds = Callable[[Call, Candidate], float]

STEP_SECONDS: Final = 0.02
"""Of decode, and as much again for every STEP_CALLS and STEP_TOKENS in it."""
STEP_CALLS: Final = 64
STEP_TOKENS: Final = 200_000


def reading(candidate: Candidate, uncached_tokens: int) -> tuple[float, float]:
    """Seconds until it has read what it has to read already, and this prompt; and of these, those
    in which it reads this prompt."""
    tokens = candidate.unread_tokens + candidate.beyond.unread_tokens + uncached_tokens
    squares: float = uncached_tokens * uncached_tokens
    if candidate.unread_tokens:
        alone = candidate.shared is None
        squares += candidate.own_unread_squares if alone else candidate.unread_squares
    expected = candidate.predicts.prefill_seconds(tokens, squares)
    seconds = tokens / TOKENS_PER_SECOND if expected is None else expected
    return seconds, seconds * uncached_tokens / tokens if tokens else 0.0


def reading_seconds(candidate: Candidate, uncached_tokens: int) -> float:
    """Until it has read what it has to read already, and this prompt."""
    return reading(candidate, uncached_tokens)[0]


def waiting_seconds(candidate: Candidate) -> float:
    return reading_seconds(candidate, 0)


def alone_seconds(candidate: Candidate, uncached_tokens: int) -> float:
    """For a prompt that need not wait."""
    expected = candidate.predicts.prefill_seconds(uncached_tokens, uncached_tokens**2)
    return uncached_tokens / TOKENS_PER_SECOND if expected is None else expected


def first_token_seconds(around: Surroundings) -> Seconds:
    share = cached_share(around)

    def seconds(call: Call, candidate: Candidate) -> float:
        tokens = call.prompt_tokens
        return reading_seconds(candidate, tokens - round(tokens * share(call, candidate)))

    return seconds


def step_seconds(call: Call, candidate: Candidate) -> float:
    batch = calls_there(candidate) + 1
    context = candidate.tokens + max(0, candidate.beyond.kv_tokens) + call.prompt_tokens
    expected = candidate.predicts.step_seconds(batch, context)
    if expected is None:
        return STEP_SECONDS * (1 + batch / STEP_CALLS + context / STEP_TOKENS)
    return expected


def first_token_soon(around: Surroundings) -> Prefer:
    seconds, half = first_token_seconds(around), around.targets.ttft_seconds

    def soon(call: Call, candidate: Candidate) -> float:
        return falling(seconds(call, candidate), half)

    return soon


def steps_quick(around: Surroundings) -> Prefer:
    half = around.targets.tpot_seconds

    def quick(call: Call, candidate: Candidate) -> float:
        return falling(step_seconds(call, candidate), half)

    return quick
