"""How far prompts take longer than in proportion shows, if there is anything to show."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdgate.scheduling.latency.quadratic import MOST, QuadraticTerm

PER_TOKEN = 1e-4


def learnt(per_square: float, *, fixed: float = 0.03, noise: float = 0.0) -> QuadraticTerm:
    """From single prompts and queues of several, most of them of some thousand tokens."""
    draw, bend = random.Random(2), QuadraticTerm()
    for _ in range(300):
        prompts = [draw.lognormvariate(8.5, 1.2) for _ in range(draw.choice([1, 1, 3]))]
        tokens, squares = sum(prompts), sum(tokens**2 for tokens in prompts)
        seconds = fixed + PER_TOKEN * tokens + per_square * squares
        bend.learn(tokens, squares, seconds * draw.gauss(1, noise))
    return bend


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_attention_shows_in_long_prompts(noise: float) -> None:
    """Half of the work of a prompt of 100,000 tokens, here."""
    bend = learnt(PER_TOKEN / 100_000, noise=noise)

    assert bend.per_token == pytest.approx(1 / 100_000, rel=0.2)


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_what_is_in_proportion_stays_so(noise: float) -> None:
    bend = learnt(0.0, noise=noise)

    assert bend.per_token == pytest.approx(0, abs=0.1 / 100_000)


def test_the_fixed_part_is_not_taken_for_it() -> None:
    """It makes short prompts dear, and long ones cheap by comparison."""
    bend = learnt(PER_TOKEN / 100_000, fixed=0.5)

    assert bend.per_token == pytest.approx(1 / 100_000, rel=0.2)


def test_a_few_prompts_say_nothing_yet() -> None:
    bend = QuadraticTerm()
    for tokens in (1000, 100_000, 2000):
        bend.learn(tokens, tokens**2, tokens**2)

    assert bend.per_token == 0


@given(st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 3600)), max_size=30))
def test_whatever_is_learnt_it_is_between_nothing_and_the_most(
    seen: list[tuple[int, float]],
) -> None:
    bend = QuadraticTerm()
    for tokens, seconds in seen:
        bend.learn(tokens, float(tokens) * tokens, seconds)

    assert 0 <= bend.per_token <= MOST
