"""Plain data -> the JSON that Grafana imports.

Grafana's own SDK knows the schema (of 11.6, the version that pyproject.toml names).
"""

import json
from collections.abc import Sequence
from typing import Final, TypeAlias

from grafana_foundation_sdk.builders import dashboard as dashboards
from grafana_foundation_sdk.builders import prometheus, stat, statetimeline, timeseries
from grafana_foundation_sdk.builders.common import (
    GraphThresholdsStyleConfig,
    ReduceDataOptions,
    StackingConfig,
    VizLegendOptions,
    VizTooltipOptions,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueGraphMode,
    GraphThresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    GridPos,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from deploy.grafana.panels import Board, Panel, PanelKind, PanelLimits, PanelRow, PanelState

DATASOURCE: Final = DataSourceRef("prometheus", "$datasource")
COLUMNS: Final = 24
GREEN, ORANGE, RED = "green", "orange", "red"
TAG: Final = "pdgate"
EVERY_JOB: Final = "pdgate_calls_in_flight"

AnyPanel: TypeAlias = timeseries.Panel | stat.Panel | statetimeline.Panel


def as_json(board: Board) -> str:
    made = (
        dashboards.Dashboard(f"pdgate / {board.title}")
        .uid(board.uid)
        .description(board.says)
        .tags([TAG])
        .timezone("browser")
        .time("now-1h", "now")
        .refresh("10s")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .link(
            dashboards.DashboardLink("pdgate")
            .type(DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .keep_time(True)
            .include_vars(True)
            .as_dropdown(True)
        )
        .with_variable(dashboards.DatasourceVariable("datasource").type("prometheus"))
        .with_variable(_choice("job", EVERY_JOB))
    )
    for label, metric in board.choices:
        made.with_variable(_choice(label, f'{metric}{{job=~"$job"}}'))
    number, top = 1, 0
    for row in board.rows:
        made.with_row(dashboards.Row(row.title).id(number).grid_pos(GridPos(1, COLUMNS, 0, top)))
        number, top = number + 1, top + 1
        for panel, place in zip(row.panels, places(row, top), strict=True):
            made.with_panel(_panel(panel).id(number).grid_pos(place))
            number, top = number + 1, place.y
        top += row.panels[-1].height
    return json.dumps(made.build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def places(row: PanelRow, top: int) -> list[GridPos]:
    """Places from left to right, and on below where a line is full; one line has one height."""
    places: list[GridPos] = []
    left = height = 0
    for panel in row.panels:
        if left + panel.width > COLUMNS or (left and panel.height != height):
            left, top = 0, top + height
        height = panel.height
        places.append(GridPos(height, panel.width, left, top))
        left += panel.width
    return places


def _choice(label: str, metric: str) -> dashboards.QueryVariable:
    return (
        dashboards.QueryVariable(label)
        .datasource(DATASOURCE)
        .query(f"label_values({metric}, {label})")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(VariableOption(selected=True, text="All", value="$__all"))
    )


def _panel(panel: Panel) -> AnyPanel:
    match panel.kind:
        case PanelKind.LINES:
            made: AnyPanel = _lines(panel)
        case PanelKind.NUMBER:
            made = (
                stat.Panel()
                .reduce_options(ReduceDataOptions().calcs(["lastNotNull"]))
                .graph_mode(BigValueGraphMode.NONE)
            )
        case PanelKind.STATES:
            made = (
                statetimeline.Panel()
                .line_width(0)
                .fill_opacity(70)
                .legend(VizLegendOptions().show_legend(False))
                .mappings([_words(panel.states)])
            )
    made.title(panel.title).description(panel.says).datasource(DATASOURCE).unit(panel.unit.value)
    made.thresholds(
        dashboards.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(_steps(panel.limits))
    )
    for ref, query in zip("ABCDEFGH", panel.queries, strict=False):
        target = prometheus.Dataquery().ref_id(ref).expr(query.expr).legend_format(query.legend)
        if panel.kind is PanelKind.NUMBER:
            target.instant()
        else:
            target.range()
        made.with_target(target.datasource(DATASOURCE))
    return made


def _lines(panel: Panel) -> timeseries.Panel:
    made = (
        timeseries.Panel()
        .fill_opacity(25 if panel.stacked else 5)
        .show_points(VisibilityMode.NEVER)
        .axis_soft_min(0)
        .legend(
            VizLegendOptions()
            .show_legend(True)
            .display_mode(LegendDisplayMode.TABLE)
            .placement(LegendPlacement.BOTTOM)
            .calcs(["lastNotNull", "max"])
        )
        .tooltip(VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    )
    if panel.stacked:
        made.stacking(StackingConfig().mode(StackingMode.NORMAL))
    if panel.limits is not None:
        made.thresholds_style(GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED))
    return made


def _words(states: Sequence[PanelState]) -> ValueMap:
    return ValueMap(
        {
            str(state.value): ValueMappingResult(state.name, state.mark.value, index=index)
            for index, state in enumerate(states)
        }
    )


def _steps(limits: PanelLimits | None) -> list[Threshold]:
    if limits is None:
        return [Threshold(None, GREEN)]
    if limits.low_is_bad:
        return [
            Threshold(None, RED), Threshold(limits.wrong, ORANGE), Threshold(limits.warning, GREEN),
        ]  # fmt: skip
    return [
        Threshold(None, GREEN), Threshold(limits.warning, ORANGE), Threshold(limits.wrong, RED),
    ]  # fmt: skip
