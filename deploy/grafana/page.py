"""The list of all panels at the end of docs/operations/dashboards.md."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from deploy.grafana.panels import Board

PAGE: Final = Path(__file__).parents[2] / "docs" / "operations" / "dashboards.md"
BEGINS: Final = "## Every panel\n"


def with_panels(page: str, boards: Iterable[Board]) -> str:
    """The page, with the list as the dashboards have it. Raises ValueError for a page without one."""
    before, begins, _ = page.partition(BEGINS)
    if not begins:
        raise ValueError(f"{PAGE.name} has no line {BEGINS.strip()!r}")
    return before + BEGINS + "\n" + "\n".join(_lines(boards))


def _lines(boards: Iterable[Board]) -> Iterator[str]:
    yield "`python -m deploy.grafana.build` writes this list; each panel has its line as a tooltip, too.\n"
    for board in boards:
        yield f"| {board.title} | |"
        yield "|---|---|"
        for panel in board.panels():
            yield f"| {panel.title} | {panel.says} |"
        yield ""
