"""Writes the dashboards' JSON beside this file, and their page: `python -m deploy.grafana.build`."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from deploy.grafana import balance, hand_over, instances, overview
from deploy.grafana.as_json import as_json
from deploy.grafana.panels import Board

FOLDER: Final = Path(__file__).parent
BOARDS: Final = (overview.BOARD, balance.BOARD, hand_over.BOARD, instances.BOARD)
PAGE: Final = Path(__file__).parents[2] / "docs" / "operations" / "dashboards.md"
BEGINS: Final = "## Every panel\n"


def file_of(board: Board) -> Path:
    return FOLDER / f"{board.uid}.json"


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


def main() -> None:
    for board in BOARDS:
        file_of(board).write_text(as_json(board), encoding="utf-8")
    said = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_panels(said, BOARDS), encoding="utf-8")


if __name__ == "__main__":
    main()
