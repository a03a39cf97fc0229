"""Pairs of engines between which calls cross just now, a line for each.

p-0 ━●●━━━━▶ d-1   2 cross, 3 answer
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rich.table import Table
from rich.text import Text

TRACK: Final = 7
"""Characters between the two; each dot on it is a call whose KV crosses."""


def pairs(running: Iterable[Mapping[str, Any]], most: int) -> Table | None:
    """Table of so many pairs at most, those with the most calls; None where there is none."""
    crossing: Counter[tuple[str, str]] = Counter()
    answering: Counter[tuple[str, str]] = Counter()
    for call in running:
        pair = call["prefill"], call["decode"]
        if all(pair):
            (crossing if call["phase"] in ("prefill", "crossing") else answering)[pair] += 1
    both = crossing + answering
    if not both:
        return None
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("from", no_wrap=True, overflow="ellipsis", max_width=16)
    table.add_column("KV")
    table.add_column("to", no_wrap=True, overflow="ellipsis", max_width=16)
    table.add_column("", no_wrap=True)
    # By name, so that lines stay where they are from one picture to the next.
    for pair in sorted(pair for pair, _ in both.most_common(most)):
        dots = "●" * min(TRACK - 2, crossing[pair])
        track = Text.assemble("━", (dots, "bold magenta"), "━" * (TRACK - 1 - len(dots)), "▶")
        said = _told(crossing[pair], answering[pair])
        table.add_row(Text(pair[0], style="yellow"), track, Text(pair[1], style="blue"), said)
    return table


def _told(crossing: int, answering: int) -> Text:
    words = [
        f"{number} {one if number == 1 else more}"
        for number, one, more in (
            (crossing, "crosses", "cross"),
            (answering, "answers", "answer"),
        )
        if number
    ]
    return Text(", ".join(words), style="dim")
