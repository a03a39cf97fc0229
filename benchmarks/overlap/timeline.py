"""A round as a picture: what computes and what moves, when, in both ways of pushing. SVG."""

from collections.abc import Sequence
from html import escape

from benchmarks.overlap.prefill import Run, Span
from benchmarks.overlap.rounds import Figures

WIDTH, LEFT, RIGHT = 960, 170, 20
BAR, GAP, HEAD = 22, 6, 30
BLUE, ORANGE, GREY = "#4477aa", "#ee7733", "#666666"


def picture(found: Sequence[Figures]) -> str:
    """Every backend and model below each other, on scales of their own."""
    parts: list[str] = []
    top = 10.0
    for one in found:
        panel, top = _panel(one, top)
        parts += panel
    font = 'font-family="sans-serif" font-size="12"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top:.0f}" {font}>\n'
        f'<rect width="{WIDTH}" height="{top:.0f}" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _panel(one: Figures, top: float) -> tuple[list[str], float]:
    shown = one.shown
    longest = max(shown.at_the_end.seconds, shown.by_layers.seconds)
    title = f"{one.backend}, {one.model}: {shown.hidden:.0%} of the transfer hidden in this round"
    parts = [_text(10, top + 14, title, bold=True)]
    top += HEAD
    for name, run in (("at the end", shown.at_the_end), ("by layers", shown.by_layers)):
        rows = [("compute", run.compute, BLUE), ("pages move", moving(run), ORANGE)]
        for row, spans, colour in rows:
            parts.append(_text(10, top + BAR - 7, f"{name}: {row}"))
            parts += [_bar(span, longest, top, colour) for span in spans]
            top += BAR + 2
        end = _x(run.seconds, longest)
        parts.append(
            f'<line x1="{end:.1f}" x2="{end:.1f}" y1="{top - 2 * BAR - 4:.1f}" y2="{top:.1f}"'
            f' stroke="{GREY}" stroke-dasharray="3 2"/>'
        )
        parts.append(_text(end - 4, top + 10, f"{run.seconds * 1e3:.0f} ms", end=True))
        top += GAP + 10
    return parts, top + GAP


def moving(run: Run) -> list[Span]:
    """When at least one write was under way."""
    joined: list[Span] = []
    for start, end in sorted(run.writes):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def _x(seconds: float, longest: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * seconds / longest


def _bar(span: Span, longest: float, top: float, colour: str) -> str:
    start, end = (_x(seconds, longest) for seconds in span)
    width = max(0.5, end - start)
    return (
        f'<rect x="{start:.1f}" y="{top:.1f}" width="{width:.1f}" height="{BAR}"'
        f' fill="{colour}" stroke="white" stroke-width="0.5"/>'
    )


def _text(x: float, y: float, said: str, *, bold: bool = False, end: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    anchor = ' text-anchor="end"' if end else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{weight}{anchor}>{escape(said)}</text>'
