"""Chart of lines over two axes, with a legend, as SVG."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10
from typing import Final

Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 620, 280
LEFT, TOP, BELOW = 56, 34, 44
LEGEND_LINE: Final = 18
LEGEND_COLUMNS: Final = 3

COLOURS: Final = (
    "#4269d0", "#d1495b", "#2e8b57", "#efb118", "#6b4fa0", "#00868b", "#a0522d", "#e377c2",
    "#7f7f7f", "#17415f",
)  # fmt: skip
DASHES: Final = ("", "7 3", "2 3", "9 3 2 3")
"""Lines can be distinguished without their colours, too."""


@dataclass(frozen=True, slots=True)
class Axis:
    """
    Attributes:
        logarithmic: Then `low` is above 0.
    """

    title: str
    low: float
    high: float
    logarithmic: bool = False

    def share(self, value: float) -> float:
        """Place of a value, 0..1; outside of the axis at its end."""
        value = min(max(value, self.low), self.high)
        if self.logarithmic:
            return log10(value / self.low) / log10(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        if self.logarithmic:
            decades = range(floor(log10(self.low)), floor(log10(self.high)) + 1)
            marks = [digit * 10.0**decade for decade in decades for digit in (1, 2, 5)]
        else:
            step = _round_step((self.high - self.low) / 5)
            first = floor(self.low / step)
            marks = [step * number for number in range(first, first + 12)]
        slack = 1e-9 * self.high
        return [mark for mark in marks if self.low - slack <= mark <= self.high + slack]


def chart(title: str, x: Axis, y: Axis, lines: Mapping[str, Points]) -> str:
    """Each line by its name."""
    rows = -(-len(lines) // LEGEND_COLUMNS)
    drawn = opening(title, TOP + HEIGHT + BELOW + rows * LEGEND_LINE)
    for tick in x.ticks():
        at = LEFT + WIDTH * x.share(tick)
        drawn.append(_line(at, TOP, at, TOP + HEIGHT))
        drawn.append(_text(at, TOP + HEIGHT + 16, f"{tick:g}", "middle"))
    for tick in y.ticks():
        at = TOP + HEIGHT * (1 - y.share(tick))
        drawn.append(_line(LEFT, at, LEFT + WIDTH, at))
        drawn.append(_text(LEFT - 6, at + 4, f"{tick:g}", "end"))
    drawn.append(_text(LEFT + WIDTH / 2, TOP + HEIGHT + 34, x.title, "middle"))
    drawn.append(_text(LEFT + WIDTH, 20, y.title, "end"))
    for number, (name, points) in enumerate(lines.items()):
        places = " ".join(
            f"{LEFT + WIDTH * x.share(a):.1f},{TOP + HEIGHT * (1 - y.share(b)):.1f}"
            for a, b in points
        )
        drawn.append(f"<polyline points='{places}' fill='none' {stroke(number)}/>")
        drawn.append(_legend(number, name, TOP + HEIGHT + BELOW + 8))
    return "\n".join([*drawn, "</svg>\n"])


def opening(title: str, height: float) -> list[str]:
    """Beginning of a picture: white paper and a title; `</svg>` is left to say."""
    width = LEFT + WIDTH + 20
    return [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}'"
        + " font-family='sans-serif' font-size='12'>",
        "<rect width='100%' height='100%' fill='white'/>",
        f"<text x='{LEFT}' y='20' font-weight='bold'>{escape(title)}</text>",
    ]


def stroke(number: int) -> str:
    colour = COLOURS[number % len(COLOURS)]
    return f"stroke='{colour}' stroke-width='2' stroke-dasharray='{DASHES[number % len(DASHES)]}'"


def _legend(number: int, name: str, top: float) -> str:
    column, row = number % LEGEND_COLUMNS, number // LEGEND_COLUMNS
    x, y = LEFT + column * WIDTH / LEGEND_COLUMNS, top + row * LEGEND_LINE
    key = f"<line x1='{x}' y1='{y - 4}' x2='{x + 28}' y2='{y - 4}' {stroke(number)}/>"
    return key + _text(x + 34, y, name, "start")


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='#ddd'/>"


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}'>{escape(text)}</text>"


def _round_step(step: float) -> float:
    """The next of 1, 2, 5, 10, ... times a power of ten."""
    power = 10.0 ** floor(log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))
