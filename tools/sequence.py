"""Sequence diagrams of pages, drawn as SVG when the site is built (tools/docs_site.py).

Pages have them as Mermaid, which GitHub and editors draw themselves. In the site a reader's browser
would fetch Mermaid from elsewhere, so they become SVG here. Known is what our pages use; anything
else is an error, and fails the build.

    sequenceDiagram
        title batch
        participant P as prefill
        G->>P: one token          a request
        P-->>G: where it is       an answer
        Note over G,P: text
"""

import re
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import Final

FENCE: Final = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)

_PARTICIPANT = re.compile(r"participant (\w+)(?: as (.+))?")
_MESSAGE = re.compile(r"(\w+)(--?>>)(\w+): (.+)")
_NOTE = re.compile(r"Note over (\w+)(?:,(\w+))?: (.+)")

LETTER: Final = 6.4
ROW: Final = 38
TOP: Final = 40
MARGIN: Final = 60


class Unknown(ValueError):
    """A line that is not drawn here."""


@dataclass(frozen=True, slots=True)
class SequenceRow:
    """A message, or a note, from one column to another."""

    start: int
    end: int
    text: str
    arrow: str = ""


@dataclass(slots=True)
class Diagram:
    title: str = ""
    names: dict[str, str] = field(default_factory=dict)
    rows: list[SequenceRow] = field(default_factory=list)


def read(text: str) -> Diagram:
    """Raises Unknown."""
    first, *lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    if first != "sequenceDiagram":
        raise Unknown(first)
    found = Diagram()
    for line in lines:
        columns = {name: number for number, name in enumerate(found.names)}
        if line.startswith("title "):
            found.title = line.removeprefix("title ")
        elif match := _PARTICIPANT.fullmatch(line):
            found.names[match[1]] = match[2] or match[1]
        elif (match := _MESSAGE.fullmatch(line)) and {match[1], match[3]} <= columns.keys():
            found.rows.append(SequenceRow(columns[match[1]], columns[match[3]], match[4], match[2]))
        elif (match := _NOTE.fullmatch(line)) and {
            match[1],
            match[2] or match[1],
        } <= columns.keys():
            found.rows.append(
                SequenceRow(columns[match[1]], columns[match[2] or match[1]], match[3])
            )
        else:
            raise Unknown(line)
    return found


def drawn(diagram: Diagram) -> str:
    at = _columns(diagram)
    bottom = TOP + ROW * len(diagram.rows) + 16
    last = max([float(MARGIN), LETTER * len([*diagram.names.values()][-1]) / 2 + 12])
    width = at[-1] + max([last, *(_beyond(row, at) for row in diagram.rows)])
    look = 'font-family="sans-serif" font-size="12" fill="currentColor" stroke="none"'
    size = f'viewBox="0 0 {width:.0f} {bottom}" width="{width:.0f}" style="max-width:100%"'
    said = [f'<svg {size} {look} role="img"><title>{escape(diagram.title)}</title>']
    for x, name in zip(at, diagram.names.values(), strict=True):
        said.append(_text(x, 16, name, bold=True))
        said.append(_line(x, 24, x, bottom, "stroke-opacity='0.35'"))
    for number, row in enumerate(diagram.rows):
        y = TOP + ROW * number + 20
        said += _message(row, at, y) if row.arrow else _note(row, at, y)
    return "".join([*said, "</svg>"])


def with_figures(markdown: str) -> str:
    """Return a page with its diagrams drawn; raise Unknown."""

    def figure(found: re.Match[str]) -> str:
        diagram = read(found[1])
        caption = f"<figcaption>{escape(diagram.title)}</figcaption>"
        return f"<figure>{drawn(diagram)}{caption}</figure>"

    return FENCE.sub(figure, markdown)


def _columns(diagram: Diagram) -> list[float]:
    """Where each stands, as near as the words between two let them."""
    names = list(diagram.names.values())
    # Names are bold.
    gaps = [max(90.0, (len(a) + len(b)) / 2 * LETTER * 1.2 + 16) for a, b in pairwise(names)]
    for row in sorted(diagram.rows, key=lambda row: abs(row.end - row.start)):
        low, high = sorted((row.start, row.end))
        if low < high:
            missing = len(row.text) * LETTER + 24 - sum(gaps[low:high])
            for gap in range(low, high):
                gaps[gap] += max(0.0, missing) / (high - low)
        elif not row.arrow:
            # A note over one stays clear of its neighbours' names, not of their lines.
            half = len(row.text) * LETTER / 2 + 16
            for gap in (low - 1, low):
                if 0 <= gap < len(gaps):
                    gaps[gap] = max(gaps[gap], half)
    places = [float(MARGIN)]
    for width in gaps:
        places.append(places[-1] + width)
    notes = [
        len(row.text) * LETTER / 2 - places[row.start]
        for row in diagram.rows
        if row.start == row.end
    ]
    shift = max([0.0, *notes]) + 8
    return [place + shift for place in places]


def _beyond(row: SequenceRow, at: list[float]) -> float:
    """How far it reaches to the right of the last column."""
    if row.start != row.end:
        return 0.0
    reach = len(row.text) * LETTER / (1 if row.arrow else 2) + 24
    return at[row.start] + reach - at[-1]


def _message(row: SequenceRow, at: list[float], y: float) -> list[str]:
    start, end = at[row.start], at[row.end]
    way = 1 if end > start else -1
    dashes = "stroke-dasharray='5 3'" if row.arrow == "-->>" else ""
    head = f"M{end - 8 * way:.0f} {y - 4} L{end:.0f} {y} L{end - 8 * way:.0f} {y + 4}"
    return [
        _text((start + end) / 2, y - 6, row.text),
        _line(start, y, end, y, dashes),
        f'<path d="{head} Z"/>',
    ]


def _note(row: SequenceRow, at: list[float], y: float) -> list[str]:
    middle = (at[row.start] + at[row.end]) / 2
    width = max(len(row.text) * LETTER + 16, at[row.end] - at[row.start] + 30)
    box = f'x="{middle - width / 2:.0f}" y="{y - 17}" width="{width:.0f}" height="22" rx="3"'
    return [
        f'<rect {box} fill="#888" fill-opacity="0.18"/>',
        _text(middle, y - 2, row.text),
    ]


def _text(x: float, y: float, text: str, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.0f}" y="{y}" text-anchor="middle"{weight}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, more: str) -> str:
    return f'<line x1="{x1:.0f}" y1="{y1}" x2="{x2:.0f}" y2="{y2}" stroke="currentColor" {more}/>'
