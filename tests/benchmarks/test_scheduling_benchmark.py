"""The measurement of what choosing costs, with few calls."""

import pytest

pytestmark = pytest.mark.source


def test_each_role_of_a_call_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import scheduling

    monkeypatch.setattr(scheduling, "CONVERSATIONS", 2)

    taken = scheduling.timed("slo", 8, 20, kilobytes=100)

    assert set(taken) == {"prefill", "decode"}
    assert all(nanoseconds > 0 for of_role in taken.values() for nanoseconds in of_role)


def test_figures_are_of_the_slowest_that_so_many_are_not_above() -> None:
    from benchmarks.scheduling import microseconds

    assert microseconds([1000 * number for number in range(101)]) == [50, 90, 99]
