"""The dashboards in deploy/grafana, as Grafana's schema and Prometheus see them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from deploy.grafana.build import BOARDS, FOLDER, PAGE, file_of, with_panels
from deploy.grafana.panels import Board, Panel, Query
from tests.deploy.asking import LABEL, known, names, over_the_run, promql
from tests.deploy.prometheus import Series
from tests.deploy.rules import FILES, rules
from tests.deploy.scene import SCRAPE_SECONDS, Scene, scene
from tests.docs.pages import DOCS, code, table

pytestmark = pytest.mark.source

OPERATIONS = DOCS / "operations"
MAY_BE_ZERO = {
    # No engine is started again under an id that it had.
    "KV hand-over / Pinned engine ids",
    # None is that full.
    "Per instance / Preemptions",
    # Of an engine: what has to wait, does so in the gateway; few looks meet one that waits.
    "Per instance / Waiting",
}
NEVER_IN_THE_RUN = {
    # It takes a prefill engine that is started again with a fixed id, which ours has not.
    "pdgate_pinned_engine_id",
}


@dataclass(frozen=True, slots=True)
class Shown:
    board: Board
    panel: Panel
    query: Query
    found: list[Series]

    def __str__(self) -> str:
        return f"{self.board.title} / {self.panel.title}"


@pytest.fixture(params=BOARDS, ids=lambda board: board.uid)
def board(request: pytest.FixtureRequest) -> Board:
    found: Board = request.param
    return found


def test_there_are_no_other_dashboards() -> None:
    assert {path.name for path in FOLDER.glob("*.json")} == {file_of(each).name for each in BOARDS}


def test_a_dashboard_is_what_was_said(board: Board) -> None:
    """After a change: python -m deploy.grafana.build."""
    from deploy.grafana.as_json import as_json

    assert file_of(board).read_text(encoding="utf-8") == as_json(board)


def test_the_page_lists_every_panel() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert page == with_panels(page, BOARDS)


def test_grafana_reads_back_what_it_gets(board: Board) -> None:
    """Its own classes lose what they do not know, and know the kinds of panels."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    said = json.loads(file_of(board).read_text(encoding="utf-8"))

    assert json.loads(json.dumps(Dashboard.from_json(said), cls=JSONEncoder)) == said


def test_no_panel_lies_on_another(board: Board) -> None:
    places = [each["gridPos"] for each in _read(board)["panels"]]
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]

    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def test_every_panel_has_its_letters(board: Board) -> None:
    """None of its queries was left out."""
    drawn = [each for each in _read(board)["panels"] if each["type"] != "row"]

    for panel, made in zip(board.panels(), drawn, strict=True):
        assert [each["expr"] for each in made["targets"]] == [q.expr for q in panel.queries]
        assert len({each["refId"] for each in made["targets"]}) == len(panel.queries)


def test_queries_name_metrics_that_exist() -> None:
    shown = {code(row[0])[0] for row in table(OPERATIONS / "metrics.md") if row[0].startswith("`")}
    recorded = {rule.name for rule in rules() if not rule.alerts}
    asked = names(
        query.expr for each in BOARDS for panel in each.panels() for query in panel.queries
    )

    assert asked | names(rule.expr for rule in rules()) <= shown | recorded


def _read(board: Board) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file_of(board).read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with scene(tmp_path_factory.mktemp("scene"), FILES) as found:
        yield found


@pytest.fixture(scope="module")
def shown(run: Scene) -> list[Shown]:
    """What every query of every panel gave."""
    return [
        Shown(each, panel, query, over_the_run(run, query))
        for each in BOARDS
        for panel in each.panels()
        for query in panel.queries
    ]


@pytest.mark.slow
def test_every_panel_shows_what_happened(shown: list[Shown]) -> None:
    empty = [f"{each}: {promql(each.query.expr)}" for each in shown if not each.found]

    assert not empty, "\n".join(empty)


@pytest.mark.slow
def test_every_label_of_a_legend_is_there(shown: list[Shown]) -> None:
    """`sum by (typo)` has data, too, and lines without a name."""
    missing = [
        f"{each}: {label}"
        for each in shown
        for label in LABEL.findall(each.query.legend)
        if not any(series.labels.get(label) for series in each.found)
    ]

    assert not missing, "\n".join(missing)


@pytest.mark.slow
def test_what_a_panel_shows_is_not_just_nothing(shown: list[Shown]) -> None:
    """A query that gives 0 whatever happens would look as well."""
    panels = {str(each) for each in shown}
    alive = {
        str(each)
        for each in shown
        if any(value for series in each.found for _, value in series.values)
    }

    assert panels - alive <= MAY_BE_ZERO


@pytest.mark.slow
def test_no_query_lives_on_a_default_alone(run: Scene) -> None:
    """`or vector(0)` would show a 0 for a metric that nobody has."""
    asked = names(
        query.expr for each in BOARDS for panel in each.panels() for query in panel.queries
    )

    assert asked - known(run.prometheus) == NEVER_IN_THE_RUN


@pytest.mark.slow
def test_every_rule_is_evaluated(run: Scene) -> None:
    found = {
        rule["name"]: (rule["health"], rule.get("lastError"))
        for group in run.prometheus.get("rules")["groups"]
        for rule in group["rules"]
    }

    assert found == {rule.name: ("ok", None) for rule in rules()}


@pytest.mark.slow
def test_alerts_are_pending_for_what_happened(run: Scene) -> None:
    """An engine died, and one has no connector.

    A page that comes half a second late is one that did not come: on a busy machine, for a moment
    all of them seem to be down.
    """
    during = run.prometheus.over("ALERTS", run.started, run.ended, SCRAPE_SECONDS)

    assert "PdgateInstanceMisconfigured" in {each.labels["alertname"] for each in during}
    wrong = "PdgateDown|PdgateNoInstance|PdgateLabelsRenamed"
    run.prometheus.until(
        f'ALERTS{{alertname="PdgateInstanceDown"}} unless on () ALERTS{{alertname=~"{wrong}"}}'
    )
