"""The picture: the first token, the pace and the last token, over the share of long prompts."""

from collections.abc import Mapping

from benchmarks.disaggregation.fleet import RULES
from benchmarks.disaggregation.report import TITLES
from benchmarks.disaggregation.rounds import Figures

PANELS = ("first_seconds", "pace_seconds", "last_seconds")
COLOURS = {"always": "#4269d0", "never": "#efb118", "auto": "#d1495b"}
DASHES = {"always": "6 3", "never": "2 3", "auto": ""}
"""Lines can be told apart without their colours."""

WIDTH, HEIGHT, MARGIN = 320, 220, 48


def svg(figures: Figures) -> str:
    panels = [_panel(figures[metric], TITLES[metric], at) for at, metric in enumerate(PANELS)]
    width, height = len(PANELS) * (WIDTH + 2 * MARGIN), HEIGHT + 2 * MARGIN + 24
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
    paper = f'<rect width="{width}" height="{height}" fill="white"/>'
    font = 'font-family="sans-serif" font-size="12">'
    return "\n".join([f"{head} {font}", paper, *panels, _legend(height - 16), "</svg>\n"])


def _panel(mixes: Mapping[float, Mapping[str, float]], title: str, number: int) -> str:
    left, top = number * (WIDTH + 2 * MARGIN) + MARGIN, MARGIN
    highest = 1.1 * max(rules[rule] for rules in mixes.values() for rule in RULES)

    def x(mix: float) -> float:
        return left + mix * WIDTH

    def y(seconds: float) -> float:
        return top + HEIGHT * (1 - seconds / highest)

    drawn = [f'<text x="{left}" y="{top - 16}" font-weight="bold">{title}</text>']
    for step in range(5):
        seconds = highest * step / 4
        at = y(seconds)
        drawn.append(
            f'<line x1="{left}" y1="{at:.1f}" x2="{left + WIDTH}" y2="{at:.1f}" stroke="#ddd"/>'
            f'<text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{seconds * 1000:.0f}</text>'
        )
    drawn += [
        f'<text x="{x(mix):.1f}" y="{top + HEIGHT + 18}" text-anchor="middle">{mix:.0%}</text>'
        for mix in mixes
    ]
    drawn.append(
        f'<text x="{left + WIDTH / 2}" y="{top + HEIGHT + 34}" text-anchor="middle">'
        "long prompts</text>"
    )
    for rule in RULES:
        points = " ".join(f"{x(mix):.1f},{y(rules[rule]):.1f}" for mix, rules in mixes.items())
        drawn.append(
            f'<polyline points="{points}" fill="none" stroke="{COLOURS[rule]}" '
            f'stroke-width="2.5" stroke-dasharray="{DASHES[rule]}"/>'
        )
    return "\n".join(drawn)


def _legend(y: int) -> str:
    drawn = []
    for number, rule in enumerate(RULES):
        x = MARGIN + number * 100
        drawn.append(
            f'<line x1="{x}" y1="{y - 4}" x2="{x + 30}" y2="{y - 4}" stroke="{COLOURS[rule]}" '
            f'stroke-width="2.5" stroke-dasharray="{DASHES[rule]}"/>'
            f'<text x="{x + 36}" y="{y}">{rule}</text>'
        )
    return "\n".join(drawn)
