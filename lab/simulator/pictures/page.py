"""Page of the pictures of some runs, which needs nothing else to be shown."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from pdgate.lab.simulator.bound import Bound
from pdgate.lab.simulator.comparing import Case
from pdgate.lab.simulator.pictures.chart import LEFT, TOP, WIDTH, Axis, Points, chart, opening
from pdgate.lab.simulator.report import COLUMNS
from pdgate.lab.simulator.spread import percentile
from pdgate.lab.simulator.summary import Summary, times
from pdgate.lab.simulator.world import Ran

STEPS = 200
"""Of a distribution's line."""
ROW, BELOW_ROWS = 12, 30
MOST_ROWS = 64
"""Of more engines, only so many are shown, evenly taken."""

STYLE = (
    "body{font:15px sans-serif;max-width:760px;margin:2em auto;padding:0 1em}table{border-collapse:"
)
STYLE += (
    "collapse;font-size:13px}td,th{padding:2px 8px;text-align:right}svg{display:block;margin:1em 0}"
)


def draw(
    folder: Path,
    several: Sequence[Case],
    ran: Sequence[Ran],
    figures: Sequence[Summary],
    limits: Mapping[float, Bound],
) -> Path:
    """Writes each picture and the page that has them all, which is returned. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = pictures(several, ran, figures, limits)
    for name, svg in drawn.items():
        (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
    path = folder / "index.html"
    path.write_text(page(several, figures, drawn), encoding="utf-8")
    return path


def pictures(
    several: Sequence[Case],
    ran: Sequence[Ran],
    figures: Sequence[Summary],
    limits: Mapping[float, Bound],
) -> dict[str, str]:
    """File name, without its end -> SVG."""
    drawn = {}
    scales = list(dict.fromkeys(case.scale for case in several))
    if len(scales) > 1:
        drawn["goodput"] = goodput(several, figures, limits)
    for scale in scales:
        of_scale = {
            case.policy: one for case, one in zip(several, ran, strict=True) if case.scale == scale
        }
        drawn |= _of_one_load(scale, of_scale)
    return drawn


def goodput(
    several: Sequence[Case], figures: Sequence[Summary], limits: Mapping[float, Bound]
) -> str:
    """`limits`: scale -> the bound there, of scales for which it is known."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for case, one in zip(several, figures, strict=True):
        lines.setdefault(case.policy, []).append((case.scale, 100 * one.goodput))
    for scale, limit in limits.items():
        lines.setdefault("bound", []).append((scale, 100 * limit.goodput))
        lines.setdefault("bound, LRU", []).append((scale, 100 * limit.goodput_lru))
    scales = [case.scale for case in several]
    return chart(
        "Goodput over load",
        Axis("times as fast as in the trace", min(scales), max(scales)),
        Axis("calls within targets, %", 0, 100),
        {name: sorted(points) for name, points in lines.items()},
    )


def _of_one_load(scale: float, of_scale: Mapping[str, Ran]) -> dict[str, str]:
    both = {name: times(one.outcomes) for name, one in of_scale.items()}
    drawn = {}
    for number, (kind, unit, factor) in enumerate((("ttft", "s", 1.0), ("tpot", "ms", 1000.0))):
        spreads = {name: [factor * t for t in one[number]] for name, one in both.items()}
        every = [value for spread in spreads.values() for value in spread]
        if every:
            # Of times that are all alike an axis would have no length.
            low, high = min(every), max(max(every), 1.1 * min(every))
            drawn[f"{kind}-{scale:g}"] = chart(
                f"{kind.upper()} at scale {scale:g}",
                Axis(f"{kind.upper()}, {unit}", low, high, logarithmic=True),
                Axis("calls that have it sooner, %", 0, 100),
                {name: distribution(spread) for name, spread in spreads.items() if spread},
            )
    for name, one in of_scale.items():
        drawn[f"busy-{name}-{scale:g}"] = heat(
            f"Busy engines at scale {scale:g}: {name}", one.busy, one.slice_seconds
        )
    return drawn


def distribution(ordered: Sequence[float]) -> Points:
    """Value -> share of values below it, in %."""
    shares = [number / STEPS for number in range(STEPS + 1)]
    return [(percentile(ordered, share), 100 * share) for share in shares]


def heat(title: str, busy: Mapping[str, Sequence[float]], slice_seconds: float) -> str:
    """How busy engines were over time: a row for each, dark where it was at work all the time.

    `busy`: name -> busy seconds of each slice.
    """
    names = list(busy)
    names = names[:: -(-len(names) // MOST_ROWS)]
    slices = max((len(busy[name]) for name in names), default=0) or 1
    width, bottom = WIDTH / slices, TOP + ROW * len(names)
    drawn = opening(title, bottom + BELOW_ROWS)
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


def page(several: Sequence[Case], figures: Sequence[Summary], drawn: Mapping[str, str]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in ("scale", "policy", *COLUMNS))
    rows = "".join(
        f"<tr><td>{case.scale:g}</td><td>{escape(case.policy)}</td>"
        + "".join(f"<td>{escape(cell(one))}</td>" for cell in COLUMNS.values())
        + "</tr>\n"
        for case, one in zip(several, figures, strict=True)
    )
    return (
        f"<!doctype html><meta charset='utf-8'><title>pdgate simulate</title><style>{STYLE}</style>\n"
        f"<h1>Simulated</h1>\n<table><tr>{head}</tr>\n{rows}</table>\n" + "\n".join(drawn.values())
    )
