"""How long callers would wait at an engine, as far as it has shown.

    first token     what is to be read there, and what the engine has not cached of this prompt
    between tokens  a step with one answer more, over all that is in its context

Where nothing has been seen of an engine, nor of any like it, prompts count as if all read equally
fast, and answers as if each took its share of STEP_SECONDS.
"""

from collections.abc import Callable
from typing import Final

from pdgate.protocols.call import Call
from pdgate.scheduling.account import calls_there, unread_tokens_there
from pdgate.scheduling.candidate import Candidate
from pdgate.scheduling.sentence.sentence import Keep, Prefer
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


def first_token_seconds(around: Surroundings) -> Seconds:
    share = cached_share(around)

    def seconds(call: Call, candidate: Candidate) -> float:
        uncached = round(call.prompt_tokens * (1 - share(call, candidate)))
        return _reading(
            candidate,
            unread_tokens_there(candidate) + uncached,
            candidate.unread_squares + uncached * uncached,
        )

    return seconds


def waiting_seconds(candidate: Candidate) -> float:
    """Until it has read what it has to read already."""
    return _reading(candidate, unread_tokens_there(candidate), candidate.unread_squares)


def alone_seconds(uncached_tokens: int, candidate: Candidate) -> float:
    """For a prompt that need not wait."""
    return _reading(candidate, uncached_tokens, uncached_tokens * uncached_tokens)


def _reading(candidate: Candidate, tokens: int, squares: float) -> float:
    expected = candidate.predicts.prefill_seconds(tokens, squares)
    return tokens / TOKENS_PER_SECOND if expected is None else expected


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


def first_token_in_time(around: Surroundings) -> Keep:
    seconds, target = first_token_seconds(around), IN_TIME * around.targets.ttft_seconds

    def first_token_in_time(call: Call, candidate: Candidate) -> bool:
        return seconds(call, candidate) <= target

    return first_token_in_time


def steps_quick(around: Surroundings) -> Prefer:
    half = around.targets.tpot_seconds

    def quick(call: Call, candidate: Candidate) -> float:
        return falling(step_seconds(call, candidate), half)

    return quick


def steps_in_time(around: Surroundings) -> Keep:
    target = around.targets.tpot_seconds

    def steps_in_time(call: Call, candidate: Candidate) -> bool:
        return step_seconds(call, candidate) <= target

    return steps_in_time
