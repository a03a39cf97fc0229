"""Writes the dashboards' JSON beside this file, and their page: `python -m deploy.grafana.build`."""

from pathlib import Path
from typing import Final

from deploy.grafana import balance, hand_over, instances, overview
from deploy.grafana.as_json import as_json
from deploy.grafana.page import PAGE, with_panels
from deploy.grafana.panels import Board

FOLDER: Final = Path(__file__).parent
BOARDS: Final = (overview.BOARD, balance.BOARD, hand_over.BOARD, instances.BOARD)


def file_of(board: Board) -> Path:
    return FOLDER / f"{board.uid}.json"


def main() -> None:
    for board in BOARDS:
        file_of(board).write_text(as_json(board), encoding="utf-8")
    said = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_panels(said, BOARDS), encoding="utf-8")


if __name__ == "__main__":
    main()
