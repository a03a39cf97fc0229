"""A mean, and two slopes that are believed as far as they have shown."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdgate.scheduling.latency.least_squares import RecursiveLeastSquares

SAMPLES = st.lists(
    st.tuples(st.floats(0, 1e3), st.floats(0, 1e6), st.floats(0, 1e3), st.floats(0.01, 100)),
    min_size=1,
)


def learnt(
    first: float, second: float, *, seed: int = 1, noise: float = 0.0
) -> RecursiveLeastSquares:
    draw, plane = random.Random(seed), RecursiveLeastSquares(0.002)
    for _ in range(300):
        a, b = draw.uniform(1, 60), draw.uniform(0, 50_000)
        plane.learn(a, b, (1 + first * a + second * b) * draw.gauss(1, noise))
    return plane


def test_both_slopes_are_told_apart() -> None:
    plane = learnt(0.1, 0.0001)

    assert plane.first == pytest.approx(0.1, rel=0.1)
    assert plane.second == pytest.approx(0.0001, rel=0.1)
    assert plane.expect(60, 50_000) == pytest.approx(12, rel=0.05)


def test_noise_does_not_become_a_slope() -> None:
    plane = learnt(0.0, 0.0, noise=0.2)

    assert plane.expect(60, 50_000) == pytest.approx(1, abs=0.15)


def test_what_makes_things_quicker_counts_as_nothing() -> None:
    """And leaves the other slope as it would be alone."""
    plane = learnt(0.1, -0.00001)

    assert plane.second == 0
    assert plane.first == pytest.approx(0.1, rel=0.2)


def test_what_never_varied_has_no_slope() -> None:
    plane = RecursiveLeastSquares(0.002)
    for y in (1.0, 2.0, 3.0):
        plane.learn(5, 100, y)

    assert plane.expect(500, 10_000) == pytest.approx(2, rel=0.01)


def test_the_latest_count_most() -> None:
    plane = RecursiveLeastSquares(0.1)
    for y in [9.0] * 100 + [1.0] * 60:
        plane.learn(1, 1, y)

    assert plane.expect(1, 1) == pytest.approx(1, rel=0.05)


def test_a_sample_of_weight_eight_is_eight_samples() -> None:
    once, often = RecursiveLeastSquares(0.01), RecursiveLeastSquares(0.01)
    for y in (1.0, 4.0):
        once.learn(1, 1, y, 8)
        for _ in range(8):
            often.learn(1, 1, y)

    assert once.mean == pytest.approx(often.mean, rel=0.02)


@given(SAMPLES, st.floats(0, 1e3), st.floats(0, 1e6), st.floats(0, 1e3), st.floats(0, 1e6))
def test_more_never_costs_less(
    samples: list[tuple[float, float, float, float]], a: float, b: float, da: float, db: float
) -> None:
    plane = RecursiveLeastSquares(0.01)
    for sample in samples:
        plane.learn(*sample)

    assert 0 <= plane.expect(a, b) <= plane.expect(a + da, b + db)
