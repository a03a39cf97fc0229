"""How far what was expected is from what was seen."""

import pytest

from pdgate.scheduling.latency.accuracy import Accuracy


def compared(*pairs: tuple[float, float]) -> Accuracy:
    accuracy = Accuracy()
    for expected, seen in pairs:
        accuracy.compare(expected, seen)
    return accuracy


def test_too_much_and_too_little_add_up_in_the_error_and_not_in_the_bias() -> None:
    accuracy = compared((1.5, 1.0), (0.5, 1.0))

    assert accuracy.error == pytest.approx(0.5)
    assert accuracy.bias == pytest.approx(0.0)


def test_bias_says_which_way() -> None:
    assert compared((2.0, 1.0)).bias == pytest.approx(1.0)
    assert compared((0.5, 1.0)).bias == pytest.approx(-0.5)


def test_the_latest_fifty_count() -> None:
    accuracy = compared(*[(9.0, 1.0)] * 50, *[(1.0, 1.0)] * 200)

    assert accuracy.compared == 250
    assert accuracy.error == pytest.approx(0.0, abs=0.2)


def test_what_took_no_time_makes_no_endless_error() -> None:
    assert compared((0.001, 0.0)).error == 0.0


def test_without_comparisons_there_is_no_error() -> None:
    assert (Accuracy().error, Accuracy().bias) == (0.0, 0.0)
