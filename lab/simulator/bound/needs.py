"""Needs of calls: the least that each takes of a fleet, in seconds of one engine.

Reading a block of a prompt costs its tokens and what they look at. The first call of a trace that has a
block pays for it, as it is not there before that call comes and has to be there before its deadline.
Later ones find it if it has been kept, or a later one pays for it again:

    call k        call i                 both have the block, none between them has
    |--- in time ---|
                  |--- in time ---|
                    ^ kept from here to i's coming, or computed once more before i's deadline

What prefill does again for k's deadline is before the first of these marks, so nothing counts twice.

An answer of n tokens takes n - 1 steps after its first one, on average no longer than the target for
a token. A step of a batch costs its base and what its calls add; were a batch larger than what the
target leaves beside the base, its calls would be late. So a call pays its own part of each step, and of
the base its part of the largest batch. (Steps K, of which each adds M to its base: by the target, summed
over calls by weight of what they add, sum(M^2) <= room * sum(M), so K >= sum(M) / room by Cauchy and Schwarz.)
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from pdgate.lab.simulator.trace import BLOCK_TOKENS, TraceCall
from pdgate.lab.simulator.world import WorldPlan
from pdgate.scheduling.disaggregation import Always

SLACK: Final = 1e-9
"""Of a time, for what arithmetic rounds."""


@dataclass(frozen=True, slots=True)
class SharedBlocks:
    """Blocks that a call shares with an earlier one.

    Attributes:
        since: When that one had to be read, if it was to be in time.
        seconds: To compute them again.
    """

    since: float
    blocks: int
    seconds: float


class Lru:
    """Cache of so many blocks."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def found(self, blocks: Sequence[int]) -> int:
        """How many it has from the front; then it has all of them, and the first ones for longest."""
        kept = self._blocks
        count = next((n for n, block in enumerate(blocks) if block not in kept), len(blocks))
        for block in reversed(blocks):
            kept[block] = None
            kept.move_to_end(block)
        while len(kept) > self._size:
            kept.popitem(last=False)
        return count


@dataclass(frozen=True, slots=True)
class Need:
    """Need of a call that some engine can serve in time.

    Attributes:
        at: When it comes.
        first: Seconds of prefill for what no earlier call has.
        kept: The rest of its prompt.
        decode: Seconds of decode.
        over: When it has its last token at the latest.
    """

    at: float
    first: float
    kept: tuple[SharedBlocks, ...]
    decode: float
    over: float


@dataclass(frozen=True, slots=True)
class Pools:
    """Engines, by what they can do.

    Attributes:
        reads, answers: Engines that may read prompts, and that may answer.
        all: Different engines in these.
        cache_blocks: That all engines that read have room for.
        window: Seconds from a call's coming within which its prompt must have been read.
        apart: No engine does both.
    """

    reads: int
    answers: int
    all: int
    cache_blocks: int
    window: float
    apart: bool


def pools(plan: WorldPlan) -> Pools:
    hardware, ttft = plan.hardware, plan.targets.ttft_seconds
    everywhere = plan.prefills + plan.decodes + plan.both
    split = isinstance(plan.rule(), Always)
    reads = plan.prefills + plan.both if split else everywhere
    window = ttft
    if split:
        # Then KV moves, and decode takes a step.
        window -= hardware.link_seconds + hardware.step_seconds(1, 0)
    return Pools(
        reads=reads,
        answers=plan.decodes + plan.both,
        all=everywhere,
        cache_blocks=reads * hardware.kv_tokens // BLOCK_TOKENS,
        window=window,
        apart=split and not plan.both,
    )


def needs(plan: WorldPlan, asks: Sequence[TraceCall], *, lru: bool = False) -> list[Need]:
    """Those of calls that can be in time at all, in the order of their coming.

    `lru`: what is found is what one cache of all engines has, if the longest unused goes first and
    calls come in order. That is no bound, as to put calls apart by what will be used again is better.
    """
    hardware, targets, of = plan.hardware, plan.targets, pools(plan)
    window, base = of.window, hardware.overhead_seconds + hardware.weights_seconds
    # A step that reads as well may load the weights while it reads, and has one overhead for both.
    token_seconds = hardware.prompt_token_seconds
    token_seconds += of.apart * hardware.overhead_seconds / hardware.step_tokens
    paid_base = base if of.apart else hardware.overhead_seconds
    seen: dict[int, float] = {}
    cache = Lru(of.cache_blocks)
    found = []

    def reading(begins: int, ends: int) -> float:
        """Seconds for the tokens from one place of a prompt to another, in steps that are full of others'."""
        looked_at = (ends * ends - begins * begins) / 2
        return (ends - begins) * token_seconds + looked_at * hardware.pair_seconds

    def answering(ask: TraceCall) -> float:
        """Seconds of answering, without end if its tokens cannot be in time."""
        steps = ask.answer_tokens - 1
        if steps < 1:
            return 0.0
        each = hardware.context_token_seconds
        least = hardware.call_seconds + ask.prompt_tokens * each
        mean = least + (steps + 1) / 2 * each
        room = targets.tpot_seconds - base
        if mean > room * (1 + SLACK):
            return inf
        return steps * (mean + paid_base * least / room)

    for ask in asks:
        first = reading(len(ask.blocks) * BLOCK_TOKENS, ask.prompt_tokens)
        kept: list[SharedBlocks] = []
        has = cache.found(ask.blocks) if lru else 0
        for number, block in enumerate(ask.blocks):
            begins = number * BLOCK_TOKENS
            seconds = reading(begins, begins + BLOCK_TOKENS)
            before = seen.get(block)
            seen[block] = ask.at
            if lru:
                first += seconds if number >= has else 0.0
            elif before is None:
                first += seconds
            elif kept and kept[-1].since == before + window:
                one = kept.pop()
                kept.append(SharedBlocks(one.since, one.blocks + 1, one.seconds + seconds))
            else:
                kept.append(SharedBlocks(before + window, 1, seconds))
        decode = answering(ask)
        fits = ask.prompt_tokens + ask.answer_tokens <= hardware.kv_tokens
        if decode < inf and fits and max(first, base) <= window * (1 + SLACK):
            over = ask.at + targets.ttft_seconds + targets.tpot_seconds * (ask.answer_tokens - 1)
            found.append(Need(ask.at, first, tuple(kept), decode, over))
    return found
