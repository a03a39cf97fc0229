"""Draws what the dashboards show of a real run: `python -m tests.deploy.pictures [FOLDER]`.

    docs/images/dashboard-<name>.png

No Grafana is needed: Prometheus answers each panel's queries, and matplotlib draws them in the places and with
the units, legends and limits that the dashboard gives them. Takes a minute.
"""

import math
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.dates import AutoDateLocator, DateFormatter
from matplotlib.ticker import FuncFormatter
from PIL import Image

from deploy.grafana.as_json import COLUMNS, places
from deploy.grafana.build import BOARDS
from deploy.grafana.panels import Board, Panel, PanelKind, PanelLimits, PanelRow, PanelState, Unit
from tests.deploy.asking import legend, over_the_run
from tests.deploy.prometheus import Series
from tests.deploy.rules import FILES
from tests.deploy.scene import SCRAPE_SECONDS, Scene, scene
from tests.docs.pages import DOCS

CALLS: Final = 20
INCHES_PER_COLUMN, INCHES_PER_LINE = 0.75, 0.42
MOST_LEGENDS: Final = 8
GREEN, ORANGE, RED = "#2e8b3d", "#d9822b", "#c4302b"
COLOURS: Final = [
    *("#3274d9", "#e0752d", "#2e9e4f", "#b94fc4", "#d1a50c", "#1f9ea8", "#c4302b", "#7a5fd0"),
    *("#8a6d3b", "#5c6b7a", "#e377c2", "#17557f"),
]
STATE_COLOURS: Final = {
    "up": GREEN,
    "slow_start": "#9ad0a3",
    "drained": "#3274d9",
    "asleep": "#8fa8c8",
    "trial": "#e8c547",
    "silent": ORANGE,
    "ejected": "#e06666",
    "down": RED,
}

Line = tuple[str, Series]


def draw(board: Board, scene: Scene, to: Path) -> None:
    lines = sum(1 + max(p.y + p.h for p in places(row, 0)) for row in board.rows)
    figure = pyplot.figure(
        figsize=(COLUMNS * INCHES_PER_COLUMN, (lines + 2) * INCHES_PER_LINE), facecolor="#f4f5f5"
    )
    tall = lines + 2
    figure.text(0.01, 1 - 0.9 / tall, f"pdgate / {board.title}", fontsize=17, weight="bold")
    top = 2
    for row in board.rows:
        figure.text(0.01, 1 - (top + 0.75) / tall, row.title, fontsize=12, color="#444444")
        top = _row(figure, row, scene, top + 1, tall)
    figure.savefig(to, dpi=70)
    pyplot.close(figure)
    # Lines on white need few colours: a third of the bytes, of which the repository keeps every version.
    with Image.open(to) as picture:
        picture.convert("RGB").quantize(128).save(to, optimize=True)


def _row(figure: Any, row: PanelRow, scene: Scene, top: int, tall: int) -> int:
    """Where the next one begins."""
    found = places(row, top)
    for panel, place in zip(row.panels, found, strict=True):
        left, width = place.x / COLUMNS, place.w / COLUMNS
        box = (
            left + 0.005,
            1 - (place.y + place.h) / tall + 0.08 / tall,
            width - 0.01,
            (place.h - 0.25) / tall,
        )
        _panel(figure, panel, scene, box, place.h)
    return max(place.y + place.h for place in found)


def _panel(figure: Any, panel: Panel, scene: Scene, box: Sequence[float], height: int) -> None:
    frame = figure.add_axes(box, facecolor="white")
    frame.set_xticks([])
    frame.set_yticks([])
    for spine in frame.spines.values():
        spine.set_color("#d8d9da")
    left, bottom, width, tall = box
    figure.text(
        left + 0.006, bottom + tall * (1 - 0.45 / height), panel.title, va="top", fontsize=10
    )
    drawn = [
        (legend(query, series), series)
        for query in panel.queries
        for series in over_the_run(scene, query)
    ]
    if panel.kind is PanelKind.NUMBER:
        _number(figure, panel, drawn, box)
        return
    legends = min(math.ceil(len(drawn) / 2), MOST_LEGENDS // 2)
    room = 0.17 + 0.052 * legends
    inner = (left + 0.032, bottom + tall * room, width - 0.04, tall * (0.84 - room))
    axes = figure.add_axes(inner, facecolor="white")
    axes.set_xlim(datetime.fromtimestamp(scene.started), datetime.fromtimestamp(scene.ended))
    axes.xaxis.set_major_locator(AutoDateLocator(maxticks=int(30 * width)))
    axes.xaxis.set_major_formatter(DateFormatter("%H:%M:%S"))
    axes.tick_params(labelsize=7.5, length=2)
    axes.locator_params(axis="y", nbins=5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if panel.kind is PanelKind.STATES:
        _states(axes, panel, drawn)
        return
    _lines(axes, panel, drawn)


def _number(figure: Any, panel: Panel, drawn: list[Line], box: Sequence[float]) -> None:
    """As it was at the end."""
    left, bottom, width, tall = box
    values = [value for _, value in drawn[0][1].values if math.isfinite(value)]
    figure.text(
        *(left + width / 2, bottom + tall * 0.38, shown(values[-1], panel.unit)),
        ha="center", va="center", fontsize=22, weight="bold", color=colour(values[-1], panel.limits),
    )  # fmt: skip


def _states(axes: Any, panel: Panel, drawn: list[Line]) -> None:
    """One line for each series, in the colours of its states."""
    marks = {state.value: state for state in panel.states}
    names = sorted(name for name, _ in drawn)
    seen: dict[str, PanelState] = {}
    for name, series in drawn:
        for time, value in series.values:
            state = marks[int(value)]
            seen[state.name] = state
            ends = datetime.fromtimestamp(time), datetime.fromtimestamp(time + 2 * SCRAPE_SECONDS)
            axes.hlines(names.index(name), *ends, color=STATE_COLOURS[state.name], linewidth=7)
    axes.set_yticks(range(len(names)), names, fontsize=7.5)
    axes.set_ylim(len(names) - 0.3, -0.7)
    handles = [
        axes.scatter([], [], marker="s", s=40, color=STATE_COLOURS[name], label=name)
        for name in STATE_COLOURS
        if name in seen
    ]
    axes.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0, -0.1), ncols=7, fontsize=7.5,
        frameon=False,
    )  # fmt: skip


def _lines(axes: Any, panel: Panel, drawn: list[Line]) -> None:
    axes.grid(axis="y", color="#eeeeee")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value, panel.unit)))
    times = sorted({time for _, series in drawn for time, _ in series.values})
    floor = [0.0] * len(times)
    for (name, series), tint in zip(drawn, COLOURS * len(drawn), strict=False):
        at = dict(series.values)
        line = [at.get(time, math.nan) for time in times]
        dates = [datetime.fromtimestamp(time) for time in times]
        if panel.stacked:
            upper = [
                low + (value if math.isfinite(value) else 0.0)
                for low, value in zip(floor, line, strict=True)
            ]
            axes.fill_between(dates, floor, upper, color=tint, alpha=0.35, linewidth=0)
            axes.plot(dates, upper, color=tint, linewidth=1.2, label=name)
            floor = upper
        else:
            axes.plot(dates, line, color=tint, linewidth=1.4, label=name)
    low, high = axes.get_ylim()
    axes.set_ylim(min(0.0, low), high if high > 0 else 1.0)
    if panel.limits is not None:
        for value, tint in ((panel.limits.warning, ORANGE), (panel.limits.wrong, RED)):
            if value <= axes.get_ylim()[1]:
                axes.axhline(value, color=tint, linewidth=1, linestyle="--")
    handles, names = axes.get_legend_handles_labels()
    axes.legend(
        handles[:MOST_LEGENDS], names[:MOST_LEGENDS], loc="upper left", bbox_to_anchor=(-0.06, -0.13),
        ncols=2, fontsize=7.5, frameon=False, borderaxespad=0, columnspacing=1, handlelength=1.2,
    )  # fmt: skip


def colour(value: float, limits: PanelLimits | None) -> str:
    if limits is None:
        return GREEN
    sign = -1 if limits.low_is_bad else 1
    for limit, found in ((limits.wrong, RED), (limits.warning, ORANGE)):
        if sign * value >= sign * limit:
            return found
    return GREEN


def shown(value: float, unit: Unit) -> str:
    match unit:
        case Unit.SHARE:
            return f"{value * 100:.3g} %"
        case Unit.SECONDS:
            return f"{value:.3g} s" if abs(value) >= 1 or not value else f"{value * 1000:.3g} ms"
        case Unit.BYTES:
            return f"{value / 1024:.3g} KiB" if value < 1 << 20 else f"{value / (1 << 20):.3g} MiB"
        case Unit.PER_SECOND:
            return f"{value:.3g}/s"
        case Unit.TOKENS_PER_SECOND:
            return f"{value / 1000:.3g}k tok/s" if value >= 1000 else f"{value:.3g} tok/s"
        case Unit.COUNT:
            return f"{value:.4g}"


def main(to: Path) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        scene(Path(folder), FILES, calls=CALLS) as run,
    ):
        for board in BOARDS:
            picture = to / f"dashboard-{board.uid.removeprefix('pdgate-')}.png"
            draw(board, run, picture)
            print(picture)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS / "images")
