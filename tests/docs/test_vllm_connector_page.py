"""What the page on vLLM's connector says is what the connector takes and shows."""

import json
import re
from dataclasses import fields

import pytest

from pdgate.engine.vllm import metrics, settings
from tests.docs.pages import DOCS, labelled

pytestmark = pytest.mark.source

PAGE = DOCS / "vllm-connector.md"


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_the_examples_are_accepted(side: str) -> None:
    config = json.loads(labelled(PAGE, "json")[side])
    extra = config["kv_connector_extra_config"]

    read = settings.read(config["kv_role"], config.get("kv_port", 14579), extra, "tiny")

    assert read.role == side


def test_every_option_is_there_with_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)

    def shown(default: object) -> str:
        return "empty" if default == "" else f"`{default}`"

    expected = {field.name: shown(field.default) for field in fields(settings.Extra)}
    assert {name: default for name, default in rows if not name.startswith("vllm")} == expected


def test_every_metric_is_there_with_its_meaning() -> None:
    rows = dict(re.findall(r"^\| `(vllm:\w+)` \| (.+) \|$", PAGE.read_text(), re.MULTILINE))

    counters = {f"{metrics.PREFIX}{name}_total": about for name, about in metrics.COUNTERS.items()}
    gauges = {f"{metrics.PREFIX}{name}": f"now: {about}" for name, about in metrics.GAUGES.items()}
    said = {name: about.lower() for name, about in rows.items()}
    assert said == {name: about.lower() for name, about in (counters | gauges).items()}
