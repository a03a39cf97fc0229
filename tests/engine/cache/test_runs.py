"""Blocks that are taken together lie together, as far as there are such."""

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pdgate.engine.cache.allocator import Allocator
from pdgate.engine.cache.runs import FreeRuns, longest_runs

TOTAL = 24


def empties(*runs: range) -> FreeRuns:
    made = FreeRuns(0)
    for run in runs:
        for block in run:
            made.add(block)
    return made


def runs_of(blocks: list[int]) -> int:
    return 1 + sum(after != before + 1 for before, after in pairwise(blocks))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, TOTAL), st.none() | st.integers(0, TOTAL))))
def test_no_block_is_lost_or_given_twice(acts: list[tuple[bool, int, int | None]]) -> None:
    runs, away = FreeRuns(TOTAL), set[int]()
    for gives_back, number, after in acts:
        if gives_back and away:
            block = sorted(away)[number % len(away)]
            away.remove(block)
            runs.add(block)
        else:
            taken = runs.take(number, after)
            assert len(taken) == min(number, TOTAL - len(away))
            assert len(set(taken)) == len(taken)
            assert away.isdisjoint(taken)
            away |= set(taken)
        assert len(runs) == TOTAL - len(away)
    assert set(runs.take(TOTAL)) | away == set(range(TOTAL))


def test_the_smallest_run_that_is_long_enough_is_taken() -> None:
    runs = empties(range(5), range(10, 13), range(20, 22))

    assert runs.take(3) == [10, 11, 12]
    assert runs.take(2) == [20, 21]
    assert runs.take(4) == [0, 1, 2, 3]


def test_where_none_is_long_enough_the_largest_are_joined() -> None:
    runs = empties(range(4), range(10, 12), range(20, 23))

    assert runs.take(6) == [0, 1, 2, 3, 10, 11]


def test_a_sequence_goes_on_where_it_lies() -> None:
    runs = empties(range(2), range(5, 9))

    assert runs.take(2, after=4) == [5, 6]


def test_of_those_that_may_go_the_longest_run_goes() -> None:
    """And of runs alike the one that has been idle for longest."""
    assert longest_runs([9, 4, 1, 3, 2], 3) == [1, 2, 3]
    assert longest_runs([9, 4, 1], 1) == [9]


def test_after_a_churn_prompts_still_lie_in_a_row() -> None:
    """Answers that grow block by block, many at a time, leave holes everywhere in a cache that is full."""
    draw, allocator = random.Random(3), Allocator(1024)
    running: list[list[int]] = []
    lengths: list[tuple[int, int]] = []
    for _ in range(1500):
        prompt = allocator.take(draw.randint(4, 40))
        lengths.append((runs_of(prompt), len(prompt)))
        running.append(prompt)
        for mine in running:
            mine += allocator.take(1, mine[-1])
        while len(running) > 8:
            over = running.pop(0)
            for block in over:
                allocator.keep_contents(block)
            allocator.drop(over)

    runs, blocks = (sum(column) for column in zip(*lengths[-500:], strict=True))
    # Taken strictly by age they come in 15 pieces.
    assert 16 * runs / blocks < 6
