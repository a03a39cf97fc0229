"""Numbers become as many characters as there is room for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdgate.operations.top.strokes import bar, line, milliseconds, squeezed


@pytest.mark.parametrize(
    ("share", "drawn"),
    [(0.0, "    "), (1.0, "████"), (0.5, "██  "), (0.53125, "██▏ "), (-1.0, "    "), (7.0, "████")],
)
def test_a_bar_is_filled_to_an_eighth_of_a_character(share: float, drawn: str) -> None:
    assert bar(share, 4) == drawn


def test_a_line_has_gaps_where_nothing_was_and_a_mark_for_little() -> None:
    assert line([None, 0.0, 0.001, 4.0, 8.0], 8.0) == " ▁▁▄█"


@given(
    st.dictionaries(st.integers(0, 2000), st.floats(0, 1e6), max_size=40),
    st.integers(1, 200),
)
def test_no_peak_is_lost_for_want_of_room(points: dict[int, float], width: int) -> None:
    """Of slots that share a character the highest is shown."""
    now, slot_seconds, slots = 2000, 2, 150
    shown = squeezed(points, now, slot_seconds, slots, width)
    recent = {
        at: value
        for at, value in points.items()
        if now // slot_seconds - slots <= at // slot_seconds < now // slot_seconds
    }

    assert len(shown) == min(width, slots)
    assert max((value for value in shown if value is not None), default=None) == max(
        recent.values(), default=None
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [(None, "-"), (0.44, "0.4 ms"), (44.4, "44 ms"), (4440.0, "4.4 s"), (44400.0, "44 s")],
)
def test_milliseconds_are_said_with_two_or_three_digits(value: float | None, said: str) -> None:
    assert milliseconds(value) == said
