"""The pictures of some runs, and a page that needs nothing else to be shown."""

from collections.abc import Mapping, Sequence
from html import escape

from pdgate.simulator.comparing import Case
from pdgate.simulator.pictures.chart import Axis, Points, chart
from pdgate.simulator.pictures.heat import heat
from pdgate.simulator.report import COLUMNS
from pdgate.simulator.spread import percentile
from pdgate.simulator.summary import Summary, times
from pdgate.simulator.world import Ran

STEPS = 200
"""Of a distribution's line."""

STYLE = (
    "body{font:15px sans-serif;max-width:760px;margin:2em auto;padding:0 1em}table{border-collapse:"
)
STYLE += (
    "collapse;font-size:13px}td,th{padding:2px 8px;text-align:right}svg{display:block;margin:1em 0}"
)


def pictures(
    several: Sequence[Case], ran: Sequence[Ran], figures: Sequence[Summary]
) -> dict[str, str]:
    """File name, without its end -> SVG."""
    drawn = {}
    scales = list(dict.fromkeys(case.scale for case in several))
    if len(scales) > 1:
        drawn["goodput"] = goodput(several, figures)
    for scale in scales:
        of_scale = {
            case.policy: one for case, one in zip(several, ran, strict=True) if case.scale == scale
        }
        drawn |= _of_one_load(scale, of_scale)
    return drawn


def goodput(several: Sequence[Case], figures: Sequence[Summary]) -> str:
    lines: dict[str, list[tuple[float, float]]] = {}
    for case, one in zip(several, figures, strict=True):
        lines.setdefault(case.policy, []).append((case.scale, 100 * one.goodput))
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
