"""Synthetic traces: conversations whose turns repeat what was said before.

SHAPES have other reuse, lengths and bursts, so that a policy is not judged by one kind of load:

    conversations   the proportions of a production trace of conversations (trace.py): long prompts with a
                    longer tail, answers of a few hundred tokens, a third of the blocks seen before
    agents          many turns with short pauses; all begin with one of a few long prompts
    chats           short prompts, long answers
    documents       long prompts, hardly any of which comes again
    bursts          conversations of which most begin in a quarter of the time
"""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from pdgate.lab.simulator.trace import BLOCK_TOKENS, TraceCall, hashed

LONGEST_PROMPT: Final = 120_000


@dataclass(frozen=True, slots=True)
class TrafficShape:
    """
    Attributes:
        prompt, prompt_spread: Of a first turn, log-normal: the median of its tokens, and the deviation
            of their logarithm.
        answer, answer_spread, longest_answer: The same of answers.
        goes_on: How likely a turn has another after it.
        pause: Seconds until the next turn, on average.
        question: Tokens that the next turn has more than what was said, on average.
        systems, system: Prompts that conversations begin with, and the tokens of each.
        burst: Times the mean at which conversations begin in the first quarter of each period.
        period: Seconds.
    """

    prompt: float = 5000
    prompt_spread: float = 1.15
    answer: float = 300
    answer_spread: float = 0.7
    longest_answer: int = 2000
    goes_on: float = 0.45
    pause: float = 60.0
    question: float = 400
    systems: int = 1
    system: int = BLOCK_TOKENS
    burst: float = 1.0
    period: float = 120.0


SHAPES: Final[Mapping[str, TrafficShape]] = {
    "conversations": TrafficShape(),
    "agents": TrafficShape(
        *(1500, 0.6, 120, 0.6),
        goes_on=0.9,
        pause=8.0,
        question=900,
        systems=12,
        system=8192,
    ),
    "chats": TrafficShape(900, 0.8, 500, 0.6, goes_on=0.6, pause=40.0, question=120),
    "documents": TrafficShape(14_000, 0.7, 250, 0.5, goes_on=0.1),
    "bursts": TrafficShape(burst=3.0),
}


def conversations(
    calls: int, per_second: float, random: Random, shape: TrafficShape = SHAPES["conversations"]
) -> list[TraceCall]:
    """Make so many calls at that rate, by conversations that begin at random."""
    asks: list[TraceCall] = []
    fresh = 0
    begin = 0.0
    # Each conversation has 1 / (1 - goes_on) turns on average.
    per_second *= 1 - shape.goes_on
    each = max(1, shape.system // BLOCK_TOKENS)
    systems = [[hashed(n * each + block) for block in range(each)] for n in range(shape.systems)]
    fresh = each * shape.systems - 1
    while len(asks) < calls:
        begin += random.expovariate(per_second * _pace(shape, begin))
        at = begin
        blocks = [*(systems[0] if len(systems) == 1 else random.choice(systems))]
        tokens = _length(random, shape.prompt, shape.prompt_spread, LONGEST_PROMPT)
        if each > 1:
            tokens += each * BLOCK_TOKENS
        while True:
            tokens = min(tokens, LONGEST_PROMPT)
            while len(blocks) < tokens // BLOCK_TOKENS:
                fresh += 1
                blocks.append(hashed(fresh))
            answer = _length(random, shape.answer, shape.answer_spread, shape.longest_answer)
            asks.append(TraceCall(at, tokens, answer, tuple(blocks[: tokens // BLOCK_TOKENS])))
            if random.random() >= shape.goes_on:
                break
            at += random.expovariate(1 / shape.pause)
            tokens += answer + 1 + int(random.expovariate(1 / shape.question))
    asks.sort(key=lambda ask: ask.at)
    return asks[:calls]


def _pace(shape: TrafficShape, at: float) -> float:
    """Times the mean, which is that of a period: what a burst has more, the rest has less."""
    if shape.burst == 1:
        return 1.0
    return shape.burst if at % shape.period < shape.period / 4 else max(0.05, (4 - shape.burst) / 3)


def _length(random: Random, median: float, spread: float, most: int) -> int:
    return max(1, min(most, round(median * random.lognormvariate(0, spread))))
