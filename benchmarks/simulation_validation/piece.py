"""The part of a trace that is replayed, made small enough for the reference engines.

    trace      512 tokens a block      12,000 tokens of a prompt    343 of an answer
    engines     16 tokens a page          375                        by the factor SHORTER

The built-in model takes a byte for a token, so a block becomes a word of 16 bytes: equal blocks are equal
words, and what the engines find of a prompt is what the simulator finds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from pdgate.lab.simulator.trace import BLOCK_TOKENS, TraceCall, in_batches

PAGE_TOKENS: Final = 16
SMALLER: Final = BLOCK_TOKENS // PAGE_TOKENS
SHORTER: Final = 16
LONGEST_PROMPT: Final = 60_000
"""Tokens of the trace; longer ones are left out, or a few of them would be all the replay."""


@dataclass(frozen=True, slots=True)
class Call:
    """
    Attributes:
        ask: What the simulator is given, in tokens of the trace.
        prompt: What the engines are given.
    """

    ask: TraceCall
    prompt: str

    @property
    def answer_tokens(self) -> int:
        return self.ask.answer_tokens


def piece(
    asks: Sequence[TraceCall], calls: int, per_second: float, batch_share: float = 0.0
) -> list[Call]:
    """The first so many that fit, coming that fast on average; of these that share is of the least urgency."""
    some = [ask for ask in asks if ask.prompt_tokens <= LONGEST_PROMPT][:calls]
    some = in_batches(some, batch_share, Random(0))
    factor = (len(some) - 1) / (per_second * (some[-1].at - some[0].at))
    return [_small(replace(ask, at=(ask.at - some[0].at) * factor)) for ask in some]


def _small(ask: TraceCall) -> Call:
    words = [f"{block:016x}" for block in ask.blocks]
    left = ask.prompt_tokens // SMALLER - PAGE_TOKENS * len(words)
    tail = f"{ask.prompt_tokens:04x}"
    prompt = "".join(words) + (tail * PAGE_TOKENS)[: max(1, left)]
    answer = max(2, ask.answer_tokens // SHORTER)
    return Call(replace(ask, answer_tokens=answer), prompt)
