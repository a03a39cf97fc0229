"""Strokes: numbers as characters, bars and lines over time. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

EIGHTHS: Final = " ▁▂▃▄▅▆▇█"
PARTS: Final = " ▏▎▍▌▋▊▉█"
UNKNOWN: Final = "-"


def bar(share: float, width: int) -> str:
    """`share`, 0..1, of so many characters."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (PARTS[rest] if rest else "")).ljust(width)


def line(values: Sequence[float | None], most: float) -> str:
    """A character each; a gap where there is none. What is more than nothing is seen."""
    found = []
    for value in values:
        if value is None:
            found.append(" ")
        else:
            height = 8 * value / most if most else 0.0
            found.append(EIGHTHS[max(1, min(8, round(height)))] if value > 0 else EIGHTHS[1])
    return "".join(found)


def squeezed(
    points: Mapping[int, float], now: int, slot_seconds: int, slots: int, width: int
) -> list[float | None]:
    """The last `slots` slots in `width` characters, the highest of those that share one.

    Args:
        points: Unix seconds at which a slot began -> its value.
        now: Unix seconds.
    """
    width = min(width, slots)
    first = now // slot_seconds - slots
    found: list[float | None] = [None] * width
    for at, value in points.items():
        place = (at // slot_seconds - first) * width // slots
        if 0 <= place < width:
            before = found[place]
            found[place] = value if before is None else max(before, value)
    return found


def milliseconds(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    if value >= 10_000:
        return f"{value / 1000:.0f} s"
    if value >= 1000:
        return f"{value / 1000:.1f} s"
    return f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms"


def count(value: float) -> str:
    if value < 10_000:
        return f"{value:.0f}"
    return f"{value / 1000:.0f}k" if value < 1e6 else f"{value / 1e6:.1f}M"


def seconds(value: float) -> str:
    if value < 100:
        return f"{max(0.0, value):.0f} s"
    return f"{value / 60:.0f} min" if value < 5400 else f"{value / 3600:.0f} h"
