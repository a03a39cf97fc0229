"""The page on the prefill queue names the options and metrics that there are, and their defaults."""

from dataclasses import fields

import pytest

from pdgate.cluster.queue.contract import Depth
from pdgate.cluster.queue.settings import QueueSettings
from pdgate.cluster.queue.watch import gauges
from tests.docs.pages import DOCS, code, table

PAGE = DOCS / "operations" / "prefill-queue.md"
NUMBERS = "0123456789"

pytestmark = pytest.mark.source


def rows(chosen: str) -> dict[str, str]:
    """Name -> second column, of the rows whose names `chosen` is the beginning of."""
    return {code(row[0])[0]: row[1] for row in table(PAGE) if row[0].startswith(f"`{chosen}")}


def test_every_metric_is_there() -> None:
    metrics = rows("pdgate_prefill_queue_")

    assert set(metrics) == set(gauges(Depth(1, 2, 3, 4.0), away_seconds=0.0))
    assert set(metrics.values()) == {"gauge"}


def test_every_option_is_there_with_its_default() -> None:
    options = [field for field in fields(QueueSettings) if field.name != "url"]

    assert {option.name: rows(option.name)[option.name] for option in options} == {
        option.name: f"{option.default:g}" for option in options
    }
