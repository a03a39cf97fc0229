"""Medians over the rounds, and ratios to the yardstick within rounds.

Whatever disturbs the machine for a minute disturbs all gateways alike, so a ratio is made of what
was measured in one round, and the median is taken of the ratios.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.gateway.rounds import Results, Seen
from benchmarks.gateway.scenarios import Figure, Scenario
from benchmarks.gateway.targets import YARDSTICK


@dataclass(frozen=True, slots=True)
class Cell:
    """What one gateway has in one row.

    Attributes:
        value: Median over the rounds; None if it has no figure.
        ratio: Median of its ratios to the yardstick; None if that one has no figure.
        why: Without a value: what was wrong.
    """

    value: float | None
    ratio: float | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    unit: str
    cells: Mapping[str, Cell]


def rows(results: Results, scenarios: Sequence[Scenario]) -> list[Row]:
    return [
        Row(
            figure.title,
            figure.unit,
            {
                name: _cell(figure, seen, results[scenario.name].get(YARDSTICK))
                for name, seen in results[scenario.name].items()
            },
        )
        for scenario in scenarios
        for figure in scenario.figures
    ]


def _cell(figure: Figure, seen: Seen, yardstick: Seen | None) -> Cell:
    if seen.wrong is not None:
        return Cell(None, None, seen.wrong)
    values = [figure.of(outcomes) for outcomes in seen.rounds]
    ratio = None
    if yardstick is not None and yardstick.wrong is None:
        others = [figure.of(outcomes) for outcomes in yardstick.rounds]
        # A difference of two CPU times may be nothing, or less, where the machine is busy.
        ratios = [
            one / other for one, other in zip(values, others, strict=True) if min(one, other) > 0
        ]
        ratio = median(ratios) if ratios else None
    return Cell(median(values), ratio)
