"""Synthetic trace: conversations whose turns repeat what was said before.

It has the proportions of a production trace of conversations (trace.py): long prompts with a
longer tail, answers of a few hundred tokens, a third of the blocks seen before.
"""

from random import Random
from typing import Final

from pdgate.lab.simulator.trace import BLOCK_TOKENS, Ask, hashed

MEDIAN_PROMPT, SPREAD_PROMPT = 5000, 1.15
"""Of a first turn, log-normal: tokens, and the deviation of their logarithm."""

MEDIAN_ANSWER, SPREAD_ANSWER = 300, 0.7
LONGEST_PROMPT: Final = 120_000
LONGEST_ANSWER: Final = 2000
GOES_ON: Final = 0.45
"""How likely a turn has another after it."""

PAUSE_SECONDS: Final = 60.0
"""Until the next turn, on average."""

QUESTION_TOKENS: Final = 400
"""That the next turn has more than what was said, on average."""


def conversations(calls: int, per_second: float, random: Random) -> list[Ask]:
    """So many calls at that rate, by conversations that begin at random."""
    asks: list[Ask] = []
    fresh = 0
    begin = 0.0
    # Each conversation has 1 / (1 - GOES_ON) turns on average.
    apart = 1 / (per_second * (1 - GOES_ON))
    system = hashed(fresh)
    while len(asks) < calls:
        begin += random.expovariate(1 / apart)
        at, blocks = begin, [system]
        tokens = _length(random, MEDIAN_PROMPT, SPREAD_PROMPT, LONGEST_PROMPT)
        while True:
            tokens = min(tokens, LONGEST_PROMPT)
            while len(blocks) < tokens // BLOCK_TOKENS:
                fresh += 1
                blocks.append(hashed(fresh))
            answer = _length(random, MEDIAN_ANSWER, SPREAD_ANSWER, LONGEST_ANSWER)
            asks.append(Ask(at, tokens, answer, tuple(blocks[: tokens // BLOCK_TOKENS])))
            if random.random() >= GOES_ON:
                break
            at += random.expovariate(1 / PAUSE_SECONDS)
            tokens += answer + 1 + int(random.expovariate(1 / QUESTION_TOKENS))
    asks.sort(key=lambda ask: ask.at)
    return asks[:calls]


def _length(random: Random, median: float, spread: float, most: int) -> int:
    return max(1, min(most, round(median * random.lognormvariate(0, spread))))
