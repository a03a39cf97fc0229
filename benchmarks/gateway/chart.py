"""The picture: a panel for each row of the table, a bar for each gateway."""

from collections.abc import Sequence
from math import ceil
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.gateway.figures import Row
from benchmarks.gateway.targets import TARGETS

COLUMNS = 3
PANEL_INCHES = (4.6, 2.1)
OURS, OTHERS = "#d1495b", "#8d99ae"


def draw(rows: Sequence[Row], file: Path) -> None:
    """Writes a PNG. The axes are logarithmic, because the slowest is a hundred times as slow."""
    lines = ceil(len(rows) / COLUMNS)
    figure = Figure(
        figsize=(COLUMNS * PANEL_INCHES[0], lines * PANEL_INCHES[1]), layout="constrained"
    )
    panels = list(figure.subplots(lines, COLUMNS, squeeze=False).flat)
    for axes, row in zip(panels, rows, strict=False):
        _panel(axes, row)
    for axes in panels[len(rows) :]:
        axes.set_visible(False)
    figure.savefig(file, dpi=110)


def _panel(axes: Axes, row: Row) -> None:
    # From the bottom upwards, so that the first of the table is at the top.
    names = [name for name in reversed(list(TARGETS)) if name in row.cells]
    values = [row.cells[name].value or 0.0 for name in names]
    colours = [OURS if name.startswith("pdgate") else OTHERS for name in names]
    bars = axes.barh(names, values, color=colours)
    texts = [_text(row.cells[name].value) for name in names]
    axes.bar_label(bars, texts, padding=3, fontsize=7)
    if any(value > 0 for value in values):
        axes.set_xscale("log")
    axes.margins(x=0.25)
    axes.set_title(f"{row.title}, {row.unit}", fontsize=9, loc="left")
    axes.tick_params(labelsize=7)
    # The bars say what they are.
    axes.xaxis.set_visible(False)
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def _text(value: float | None) -> str:
    if value is None:
        return "wrong"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
