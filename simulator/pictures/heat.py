"""How busy engines were over time, as SVG: a row for each, dark where it was at work all the time."""

from collections.abc import Mapping, Sequence

from pdgate.simulator.pictures.chart import LEFT, TOP, WIDTH, opening

ROW, BELOW = 12, 30
MOST_ROWS = 64
"""Of more engines, only so many are shown, evenly taken."""


def heat(title: str, busy: Mapping[str, Sequence[float]], slice_seconds: float) -> str:
    """`busy`: name -> busy seconds of each slice."""
    names = list(busy)
    names = names[:: -(-len(names) // MOST_ROWS)]
    slices = max((len(busy[name]) for name in names), default=0) or 1
    width, bottom = WIDTH / slices, TOP + ROW * len(names)
    drawn = opening(title, bottom + BELOW)
    for row, name in enumerate(names):
        y = TOP + row * ROW
        drawn.append(
            f"<text x='{LEFT - 6}' y='{y + ROW - 2}' font-size='10' text-anchor='end'>{name}</text>"
        )
        drawn += [
            f"<rect x='{LEFT + number * width:.1f}' y='{y}' width='{width + 0.2:.1f}' height='{ROW - 1}' "
            f"fill='#17415f' fill-opacity='{min(1.0, seconds / slice_seconds):.2f}'/>"
            for number, seconds in enumerate(busy[name])
            if seconds
        ]
    drawn.append(f"<text x='{LEFT}' y='{bottom + 18}'>0 s</text>")
    drawn.append(
        f"<text x='{LEFT + WIDTH}' y='{bottom + 18}' text-anchor='end'>"
        f"{slices * slice_seconds:.0f} s</text>"
    )
    return "\n".join([*drawn, "</svg>\n"])
