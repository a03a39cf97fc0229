"""The rules in deploy/prometheus, as they are written."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parents[2] / "deploy" / "prometheus"
FILES: Final = (FOLDER / "recording.yaml", FOLDER / "alerts.yaml")


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    expr: str
    labels: dict[str, str]
    annotations: dict[str, str]
    alerts: bool


def rules() -> list[Rule]:
    return [_rule(said) for file in FILES for group in _groups(file) for said in group["rules"]]


def alerts() -> list[Rule]:
    return [rule for rule in rules() if rule.alerts]


def _groups(file: Path) -> list[dict[str, Any]]:
    import yaml

    found: list[dict[str, Any]] = yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]
    return found


def _rule(said: dict[str, Any]) -> Rule:
    return Rule(
        said.get("alert") or said["record"],
        said["expr"],
        said.get("labels", {}),
        said.get("annotations", {}),
        "alert" in said,
    )
