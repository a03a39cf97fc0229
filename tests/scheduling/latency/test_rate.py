"""How long something takes is learnt from how long it took."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdgate.scheduling.latency.model import ENOUGH, Rate

SEEN = st.lists(
    st.tuples(st.integers(0, 1_000_000), st.floats(0, 3600, allow_nan=False)), min_size=ENOUGH
)


def test_nothing_is_said_before_enough_was_seen() -> None:
    speed = Rate()
    for _ in range(ENOUGH - 1):
        speed.learn(10, 1.0)
    assert speed.expect(10) is None

    speed.learn(10, 1.0)

    assert speed.expect(10) is not None


def test_one_size_is_taken_to_grow_in_proportion() -> None:
    speed = Rate()
    for _ in range(20):
        speed.learn(100, 1.0)

    assert speed.expect(100) == pytest.approx(1.0, rel=0.1)
    assert speed.expect(1000) == pytest.approx(10.0, rel=0.1)


def test_what_is_level_is_the_same_for_all_sizes_until_it_shows() -> None:
    speed = Rate(level=True)
    for _ in range(20):
        speed.learn(100, 1.0)
    assert speed.expect(10_000) == pytest.approx(1.0)

    for _ in range(20):
        speed.learn(10_000, 5.0)
        speed.learn(100, 1.0)

    assert speed.expect(10_000) == pytest.approx(5.0, rel=0.2)
    assert speed.expect(100) == pytest.approx(1.0, rel=0.2)


def test_short_ones_make_long_ones_forgotten_only_a_little() -> None:
    speed = Rate()
    for _ in range(5):
        speed.learn(4000, 8.0)
        speed.learn(40, 0.1)

    for _ in range(30):
        speed.learn(40, 0.1)

    assert speed.expect(4000) == pytest.approx(8.0, rel=0.2)


def test_what_does_not_grow_with_tokens_is_told_apart() -> None:
    speed = Rate()
    for turn in range(200):
        tokens = 10 + 100 * (turn % 10)
        speed.learn(tokens, 2.0 + 0.001 * tokens)

    assert speed.expect(0) == pytest.approx(2.0, rel=0.2)
    assert speed.expect(10_000) == pytest.approx(12.0, rel=0.2)


def test_the_latest_count_most() -> None:
    speed = Rate()
    for seconds in (10.0, 1.0):
        for _ in range(100):
            speed.learn(100, seconds)

    assert speed.expect(100) == pytest.approx(1.0, rel=0.1)


def test_noise_on_short_prompts_does_not_make_long_ones_free() -> None:
    noise = random.Random(7)
    speed = Rate()
    for _ in range(50):
        speed.learn(noise.randint(20, 40), noise.uniform(0.01, 0.05))

    expected = speed.expect(4000)

    assert expected is not None
    assert expected > 0.5


@given(SEEN, st.integers(0, 1_000_000), st.integers(0, 1_000_000), st.booleans())
def test_more_tokens_never_take_less_time(
    seen: list[tuple[int, float]], some: int, more: int, level: bool
) -> None:
    speed = Rate(level=level)
    for tokens, seconds in seen:
        speed.learn(tokens, seconds)

    few, many = (speed.expect(tokens) for tokens in sorted((some, more)))

    assert few is not None
    assert many is not None
    assert 0 <= few <= many
