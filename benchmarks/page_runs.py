"""Runs of neighbouring blocks that requests get after an hour of churn, and what of the cache that costs.

    python -m benchmarks.page_runs

Conversations of several turns come and go at a cache that holds a small part of them: prompts of 4 to 64 blocks, answers
that grow block by block, twelve at a time, and every turn begins with the turn before. 36,000 of them are
an hour at 10 a second. A transfer moves each run as one piece, in every layer.
"""

import random
from collections import deque
from itertools import pairwise
from typing import Final

from pdgate.engine.cache.allocator import Allocator

TURNS: Final = 36_000
BLOCKS: Final = 4096
AT_ONCE: Final = 12
CONVERSATIONS: Final = 200
LAST: Final = 2000
"""Turns of which the figures are."""


def runs_of(blocks: list[int]) -> int:
    return 1 + sum(b != a + 1 for a, b in pairwise(blocks))


class Churn:
    """A cache by conversation: which blocks hold its beginning."""

    def __init__(self) -> None:
        self._blocks = Allocator(BLOCKS, self._forgotten)
        self._of: dict[int, list[int]] = {}
        self._whose: dict[int, int] = {}
        self.hits = self.asked = 0
        self.runs: deque[tuple[int, int, int]] = deque(maxlen=LAST)

    def _forgotten(self, block: int) -> None:
        conversation = self._whose.pop(block, None)
        if conversation is not None and block in self._of[conversation]:
            kept = self._of[conversation]
            for lost in kept[kept.index(block) :]:
                self._whose.pop(lost, None)
            del kept[kept.index(block) :]

    def begin(self, conversation: int, length: int) -> list[int]:
        cached = self._of.setdefault(conversation, [])[:length]
        self._blocks.share(cached)
        mine = [*cached, *self._blocks.take(length - len(cached), cached[-1] if cached else None)]
        self.hits, self.asked = self.hits + len(cached), self.asked + length
        self.runs.append((runs_of(mine), runs_of(sorted(mine)), length))
        return mine

    def grow(self, mine: list[int]) -> None:
        mine += self._blocks.take(1, mine[-1])

    def end(self, conversation: int, mine: list[int]) -> None:
        known = self._of[conversation]
        for block in mine[len(known) :]:
            if block not in self._whose:
                self._whose[block] = conversation
                known.append(block)
        for block in mine:
            self._blocks.keep_contents(block)
        self._blocks.drop(mine)


def churned() -> tuple[float, float, float]:
    """Runs of 16 blocks in their order and in any order, and the share of prompt blocks that were cached."""
    draw, churn = random.Random(1), Churn()
    lengths: dict[int, int] = {}
    running: deque[tuple[int, list[int], int]] = deque()
    for turn in range(TURNS):
        conversation = draw.randrange(turn // 40, turn // 40 + CONVERSATIONS)
        lengths[conversation] = min(128, lengths.get(conversation, 0) + draw.randint(4, 64))
        if conversation in {one for one, _, _ in running}:
            continue
        running.append(
            (conversation, churn.begin(conversation, lengths[conversation]), draw.randint(1, 16))
        )
        for _, mine, left in running:
            if left > 0:
                churn.grow(mine)
        running = deque((one, mine, left - 1) for one, mine, left in running)
        while len(running) > AT_ONCE:
            one, mine, _ = running.popleft()
            lengths[one] = min(128, len(mine))
            churn.end(one, mine)
    runs, any_order, blocks = (sum(column) for column in zip(*churn.runs, strict=True))
    return 16 * runs / blocks, 16 * any_order / blocks, churn.hits / churn.asked


def main() -> None:
    runs, any_order, hits = churned()
    print(
        f"{runs:5.2f} runs per 16 blocks, {any_order:5.2f} in any order"
        f"   {hits:6.1%} of prompt blocks cached"
    )


if __name__ == "__main__":
    main()
