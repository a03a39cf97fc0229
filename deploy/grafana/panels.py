"""What a dashboard is made of, as plain data.

    Board "PD balance"
      Row "Load"
        Panel "Legs in flight, by role"
          Query  sum by (role) (pdgate_instance_calls{job=~"$job"})     legend {{role}}

Variables in queries are those of Grafana: `$job`, `$model` and `$instance` are chosen on the
dashboard, `$__rate_interval` is four scrapes or more.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

WINDOW: Final = "$__rate_interval"
OF_JOB: Final = 'job=~"$job"'
OF_MODEL: Final = f'{OF_JOB},model=~"$model"'
OF_INSTANCE: Final = f'{OF_JOB},instance=~"$instance"'
QUANTILES: Final = (0.5, 0.95, 0.99)


class Unit(StrEnum):
    """Units in Grafana's spelling (packages/grafana-data, valueFormats/categories.ts)."""

    COUNT = "short"
    SHARE = "percentunit"
    SECONDS = "s"
    BYTES = "bytes"
    PER_SECOND = "reqps"
    TOKENS_PER_SECOND = "suffix: tokens/s"


class PanelKind(StrEnum):
    """How a panel is drawn, by the name of Grafana's plugin."""

    LINES = "timeseries"
    NUMBER = "stat"
    STATES = "state-timeline"


@dataclass(frozen=True, slots=True)
class Query:
    """
    Attributes:
        expr: PromQL.
        legend: With {{label}} for what a series is called.
    """

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class PanelLimits:
    """Bounds above which a value is worth a look, and wrong.

    Attributes:
        low_is_bad: The values are lower bounds.
    """

    warning: float
    wrong: float
    low_is_bad: bool = False


class Mark(StrEnum):
    """How good a state is, as a colour of Grafana."""

    GOOD = "green"
    DOUBTED = "orange"
    BAD = "red"
    MEANT = "blue"


@dataclass(frozen=True, slots=True)
class PanelState:
    """What a value means."""

    value: int
    name: str
    mark: Mark


@dataclass(frozen=True, slots=True)
class Panel:
    """
    Attributes:
        says: What it tells, for the panel's tooltip and for the page on dashboards.
        states: What values mean, of a panel of states.
        width: Of 24 columns.
        stacked: Lines are drawn on each other, as they are parts of one amount.
    """

    title: str
    says: str
    queries: tuple[Query, ...]
    unit: Unit = Unit.COUNT
    limits: PanelLimits | None = None
    kind: PanelKind = PanelKind.LINES
    states: tuple[PanelState, ...] = ()
    width: int = 8
    stacked: bool = False

    @property
    def height(self) -> int:
        return 4 if self.kind is PanelKind.NUMBER else 8


@dataclass(frozen=True, slots=True)
class PanelRow:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Board:
    """
    Attributes:
        uid: What it is called in URLs; its file has the same name.
        choices: Variable -> the metric of whose labels it offers the values, beside `$job`.
    """

    uid: str
    title: str
    says: str
    rows: tuple[PanelRow, ...]
    choices: tuple[tuple[str, str], ...] = ()

    def panels(self) -> Iterator[Panel]:
        for row in self.rows:
            yield from row.panels


def rate(counter: str, of: str = OF_JOB, by: str = "") -> str:
    """Rate per second, added up over gateways."""
    return f"{total(by)} (rate({counter}{{{of}}}[{WINDOW}]))"


def total(by: str) -> str:
    return f"sum by ({by})" if by else "sum"


def quantile(share: float, histogram: str, of: str = OF_JOB, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share:g}, {rate(f'{histogram}_bucket', of, labels)})"


def quantiles(histogram: str, of: str = OF_JOB) -> tuple[Query, ...]:
    return tuple(Query(quantile(q, histogram, of), f"p{q * 100:g}") for q in QUANTILES)


def mean(histogram: str, of: str = OF_JOB, by: str = "") -> str:
    return f"{rate(f'{histogram}_sum', of, by)} / {rate(f'{histogram}_count', of, by)}"


def number(
    title: str, expr: str, says: str, unit: Unit = Unit.COUNT, limits: PanelLimits | None = None
) -> Panel:
    """One value, of now."""
    return Panel(title, says, (Query(expr, title),), unit, limits, PanelKind.NUMBER, width=4)


def seen_by_any(gauge: str, by: str, of: str = OF_JOB) -> str:
    """Query of what every gateway sees on its own: the worst that any of them says."""
    return f"max by ({by}) ({gauge}{{{of}}})"
