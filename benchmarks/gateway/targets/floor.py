"""The guard's relay over real sockets (benchmarks/gateway/floor.py): what no gateway here can go below."""

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gateway.targets.base import Place, Target


def _nothing(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)


def _command(place: Place) -> Sequence[str]:
    return [
        *(sys.executable, "-m", "benchmarks.gateway.floor"),
        *(str(place.port), place.prefill, place.decode),
    ]


TARGET = Target(
    "floor",
    "the least that carries a call in this language: no choice, limits, retries, call stats",
    2,
    _nothing,
    _command,
)
