"""The rules in deploy/prometheus, checked and tried out by Prometheus's own promtool."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pdgate.protocols import errors
from tests.deploy.alert_cases import CASES, Case
from tests.deploy.prometheus import required
from tests.deploy.rules import FILES, FOLDER, Rule, alerts, rules
from tests.docs.pages import DOCS

pytestmark = pytest.mark.source

HANGS_SECONDS = 300
"""All alerts take promtool nine seconds of CPU time; beside ten other programs on two cores, over a minute."""
LONG_AFTER_MINUTES = 60
LONG_MINUTES = 5
"""Rules that look back for hours are tried out in longer steps, to save time."""


@pytest.fixture(scope="module")
def promtool() -> str:
    return required("promtool")


def run(promtool: str, *words: str | Path) -> None:
    done = subprocess.run(
        [promtool, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_understands_every_rule(promtool: str) -> None:
    run(promtool, "check", "rules", *FILES)


def test_the_configuration_that_we_show_is_one(promtool: str) -> None:
    run(promtool, "check", "config", FOLDER / "prometheus.yaml")


@pytest.mark.slow
def test_every_alert_fires_when_it_should_and_not_else(promtool: str, tmp_path: Path) -> None:
    found = {rule.name: rule for rule in alerts()}
    for file in FILES:
        shutil.copy(file, tmp_path)
    for every_minutes in (1, LONG_MINUTES):
        wanted = [
            unit
            for case in CASES
            if (case.minute > LONG_AFTER_MINUTES) == (every_minutes == LONG_MINUTES)
            for unit in units(case, found[case.alert])
        ]
        tests = {
            "rule_files": [file.name for file in FILES],
            "evaluation_interval": f"{every_minutes}m",
            "tests": wanted,
        }
        # JSON is YAML.
        (tmp_path / f"every-{every_minutes}.yaml").write_text(json.dumps(tests))

    run(promtool, "test", "rules", *tmp_path.glob("every-*.yaml"))


@pytest.mark.parametrize("waiting", [0, 30], ids=["no gate", "calls wait"])
def test_engines_are_scaled_by_calls_that_wait_in_the_gateway_as_well(
    promtool: str, tmp_path: Path, waiting: int
) -> None:
    """Where they wait for a target, engines have few, however many come."""
    import yaml

    file = FOLDER.parent / "kubernetes/components/autoscaling/adapter-rules.yaml"
    expected = {"pdgate_prefill_calls": 3 + waiting, "pdgate_decode_calls": 9 + waiting}
    series = {
        'pdgate_instance_calls{namespace="llm",role="prefill",instance="p0"}': 1,
        'pdgate_instance_calls{namespace="llm",role="prefill",instance="p1"}': 2,
        'pdgate_instance_calls{namespace="llm",role="decode",instance="d0"}': 9,
        'pdgate_instance_calls{namespace="other",role="decode",instance="d0"}': 100,
    }
    if waiting:
        series |= {'pdgate_calls_waiting{namespace="llm",model="m"}': waiting}
    asked = [
        {
            "expr": rule["metricsQuery"]
            .replace("<<.LabelMatchers>>", 'namespace="llm"')
            .replace("<<.GroupBy>>", "namespace"),
            "eval_time": "1m",
            "exp_samples": [{"labels": '{namespace="llm"}', "value": expected[rule["name"]["as"]]}],
        }
        for rule in yaml.safe_load(file.read_text())
    ]
    inputs = [{"series": name, "values": f"{value}x2"} for name, value in series.items()]
    unit = {"interval": "1m", "input_series": inputs, "promql_expr_test": asked}
    (tmp_path / "scaling.yaml").write_text(json.dumps({"rule_files": [], "tests": [unit]}))

    run(promtool, "test", "rules", tmp_path / "scaling.yaml")


def units(case: Case, rule: Rule) -> list[dict[str, object]]:
    """In promtool's words: one where it fires, one where it does not."""
    alert = {
        "exp_labels": {**case.labels, "severity": case.severity},
        "exp_annotations": {**rule.annotations, "summary": case.summary},
    }
    return [
        {
            "name": f"{case.alert} {name}",
            "interval": "1m",
            "input_series": [{"series": of, "values": values} for of, values in series.items()],
            "alert_rule_test": [
                {"eval_time": f"{case.minute}m", "alertname": case.alert, "exp_alerts": expected}
            ],
        }
        for name, series, expected in (("fires", case.fires, [alert]), ("is quiet", case.quiet, []))
    ]


def test_every_alert_is_tried_out() -> None:
    assert {case.alert for case in CASES} == {rule.name for rule in alerts()}


def test_every_alert_has_a_section_on_the_page() -> None:
    page = (DOCS / "operations" / "alerts.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL))

    assert list(sections) == [rule.name for rule in alerts()]
    for rule in alerts():
        assert rule.annotations["runbook_url"] == f"docs/operations/alerts.md#{rule.name.lower()}"
        for part in ("**Means.**", "**Users see.**", "**Find the cause.**", "**Do.**"):
            assert part in sections[rule.name], f"{rule.name} does not say {part}"


def test_errors_that_are_not_the_clients_count_as_unserved() -> None:
    """A new error would else be missed, or raise the alarm for what clients do."""
    (unserved,) = (rule for rule in rules() if rule.name == "pdgate:unserved:ratio_rate5m")
    (pattern,) = re.findall(r'outcome!~"([^"]+)"', unserved.expr)
    ours = {each.code or "internal_error" for each in _errors() if each.status >= 500}
    theirs = {each.code or "bad_request" for each in _errors() if each.status < 500}

    assert not {code for code in ours if re.fullmatch(pattern, code)}
    assert set(pattern.split("|")) == theirs | {"ok", "client_gone", "engine_rejected"}


def _errors() -> list[type[errors.GatewayError]]:
    found = [each for each in vars(errors).values() if isinstance(each, type)]
    return [
        each
        for each in found
        if issubclass(each, errors.GatewayError) and each is not errors.EngineRejected
    ]
