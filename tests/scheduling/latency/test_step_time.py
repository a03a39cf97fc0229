"""What a prompt costs the streams of the engine that reads it is learnt from how they went on."""

import math
import random
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdgate.scheduling.latency.step_time import StepTime

STEPS = 8
STRETCHES = st.lists(
    st.tuples(st.integers(0, 100), st.integers(0, 1_000_000), st.floats(0, 3600, allow_nan=False))
)


def learnt(read: Iterable[int], step_seconds: Callable[[float], float]) -> StepTime:
    """From stretches in which so many tokens were read; a step takes so long for its share."""
    pace = StepTime()
    for tokens in read:
        pace.learn(STEPS, tokens, STEPS * step_seconds(tokens / STEPS))
    return pace


def test_a_prompt_costs_what_it_adds_to_the_steps() -> None:
    pace = learnt([0, 100, 200, 0, 300, 100] * 20, lambda read: 0.02 + 0.0001 * read)

    assert pace.longer_seconds(100) == pytest.approx(0.01, rel=0.1)
    assert pace.longer_seconds(1000) == pytest.approx(0.1, rel=0.1)


def test_a_prompt_that_makes_no_step_longer_costs_nothing() -> None:
    pace = learnt([0, 100, 200, 0, 300, 100] * 20, lambda _: 0.02)

    assert pace.longer_seconds(100) == pytest.approx(0.0, abs=1e-9)


def test_the_first_stretches_count_whole() -> None:
    pace = learnt([0, 800, 0, 800], lambda read: 0.02 + 0.0001 * read)

    assert pace.longer_seconds(100) == pytest.approx(0.01, rel=0.1)


def test_who_has_seen_no_reading_takes_it_for_free() -> None:
    assert StepTime().longer_seconds(100) == 0.0
    assert learnt([0] * 50, lambda _: 0.02).longer_seconds(100) == 0.0


def test_who_has_always_seen_the_same_takes_it_for_free() -> None:
    """Slow steps and slow reading look alike then."""
    pace = learnt([200] * 50, lambda read: 0.02 + 0.0001 * read)

    assert pace.longer_seconds(200) == pytest.approx(0.0, abs=1e-6)


def test_noise_is_not_taken_for_a_cost() -> None:
    """100 tokens cost nothing here, and a step varies by a tenth."""
    noise = random.Random(5)
    pace = learnt(
        (noise.choice([0, 100, 200]) for _ in range(200)), lambda _: noise.gauss(0.02, 0.002)
    )

    assert pace.longer_seconds(100) < 0.005


def test_noise_is_not_taken_for_a_cost_where_reading_hardly_varies() -> None:
    noise = random.Random(4)
    pace = learnt(
        (noise.choice([196, 200, 204]) for _ in range(200)), lambda _: noise.gauss(0.02, 0.002)
    )

    assert pace.longer_seconds(200) < 0.001


def test_the_latest_count_most() -> None:
    pace = StepTime()
    for cost in (0.001, 0.0001):
        for tokens in [0, 100, 200] * 150:
            pace.learn(STEPS, tokens, STEPS * 0.02 + cost * tokens)

    assert pace.longer_seconds(100) == pytest.approx(0.01, rel=0.1)


def test_streams_that_saw_no_reading_do_not_make_its_cost_forgotten() -> None:
    pace = learnt([0, 800] * 20 + [0] * 500, lambda read: 0.02 + 0.0001 * read)

    assert pace.longer_seconds(100) == pytest.approx(0.01, rel=0.1)


def test_a_machine_that_slept_does_not_make_reading_dear_for_long() -> None:
    pace = learnt([0, 100, 200] * 100, lambda read: 0.02 + 0.0001 * read)
    pace.learn(STEPS, 200, 3600)
    for tokens in [0, 100, 200] * 100:
        pace.learn(STEPS, tokens, STEPS * 0.02 + 0.0001 * tokens)

    assert pace.longer_seconds(100) == pytest.approx(0.01, rel=0.5)


@given(STRETCHES, st.integers(0, 1_000_000), st.integers(0, 1_000_000))
def test_more_tokens_never_cost_less(
    stretches: list[tuple[int, int, float]], some: int, more: int
) -> None:
    pace = StepTime()
    for steps, read, seconds in stretches:
        pace.learn(steps, read, seconds)

    few, many = (pace.longer_seconds(tokens) for tokens in sorted((some, more)))

    assert 0 <= few <= many
    assert math.isfinite(many)


def test_steps_grow_with_answers_and_their_context() -> None:
    draw, pace = random.Random(6), StepTime()
    for _ in range(300):
        batch, read = draw.randint(1, 60), draw.choice([0, 0, 800])
        context = batch * draw.randint(100, 10_000)
        step = 0.01 + 0.0002 * batch + 1e-8 * context + 0.0001 * read / STEPS
        pace.learn(STEPS, read, STEPS * step * draw.gauss(1, 0.05), batch, context)

    assert pace.step_seconds(60, 360_000) == pytest.approx(0.0256, rel=0.1)
    assert pace.step_seconds(1, 1000) == pytest.approx(0.0102, rel=0.1)
    assert pace.accuracy.error < 0.1
    assert abs(pace.accuracy.bias) < 0.05


def test_of_steps_nothing_is_said_before_enough_were_seen() -> None:
    pace = StepTime()
    pace.learn(STEPS, 0, STEPS * 0.02, 1, 10)
    assert pace.step_seconds(1, 10) is None

    pace.learn(STEPS, 0, STEPS * 0.02, 1, 10)

    assert pace.step_seconds(1, 10) == pytest.approx(0.02)


def test_an_engine_s_own_word_counts_where_nothing_was_seen() -> None:
    pace = StepTime()
    for batch in (1, 11, 21) * 20:
        pace.said(0.01 + 0.001 * batch, batch, 0)

    assert pace.step_seconds(21, 0) == pytest.approx(0.031, rel=0.1)
    assert pace.longer_seconds(1000) == 0.0

    for _ in range(200):
        pace.learn(STEPS, 0, STEPS * 0.05, 1, 0)
    pace.said(9.0, 1, 0)

    assert pace.step_seconds(1, 0) == pytest.approx(0.05, rel=0.2)
