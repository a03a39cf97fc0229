"""The queries of dashboards and rules, as Grafana would ask them."""

import math
import re
from collections.abc import Iterable

from deploy.grafana.panels import Query
from tests.deploy.prometheus import Prometheus, Series
from tests.deploy.scene import SCRAPE_SECONDS, Scene

LABEL = re.compile(r"{{(\w+)}}")
VARIABLES = {
    "$__rate_interval": f"{8 * SCRAPE_SECONDS:g}s",
    "$job": "pdgate",
    # What "All" stands for.
    "$model": ".*",
    "$instance": ".*",
}


def promql(expr: str) -> str:
    """With a value for each of Grafana's variables. Raises AssertionError for one we do not know."""
    for name, value in VARIABLES.items():
        expr = expr.replace(name, value)
    assert "$" not in expr, f"nobody says what a variable stands for in {expr}"
    return expr


def over_the_run(scene: Scene, query: Query, step: float = SCRAPE_SECONDS) -> list[Series]:
    """What a panel would draw: series that have a number somewhere."""
    # Counted back from the end, so that the last moment is one that is looked at.
    start = scene.ended - step * int((scene.ended - scene.started) / step)
    found = scene.prometheus.over(promql(query.expr), start, scene.ended, step)
    return [series for series in found if has_number(series)]


def has_number(series: Series) -> bool:
    return any(math.isfinite(value) for _, value in series.values)


def legend(query: Query, series: Series) -> str:
    """A label that is missing is empty, as in Grafana."""
    return LABEL.sub(lambda found: series.labels.get(found[1], ""), query.legend)


def names(exprs: Iterable[str]) -> set[str]:
    """Metrics that are asked for; of a histogram, its own name."""
    found = {
        name
        for expr in exprs
        for name in re.findall(r"\b(?:pdgate|vllm)[\w:]*", re.sub(r'"[^"]*"', "", expr))
    }
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in found}


def known(prometheus: Prometheus) -> set[str]:
    """Metrics that were ever scraped or recorded."""
    return {
        re.sub(r"_(bucket|sum|count)$", "", name)
        for name in prometheus.get("label/__name__/values")
    }
