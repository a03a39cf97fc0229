"""Writes the rules of this folder as the object that the Prometheus Operator takes.

    python -m deploy.prometheus.as_object

The rules are kept as files that Prometheus itself reads, and promtool tests; this only wraps them.
"""

from pathlib import Path
from typing import Any, Final

import yaml

HERE: Final = Path(__file__).parent
TARGET: Final = HERE.parent / "kubernetes" / "components" / "monitoring" / "rules.yaml"
FILES: Final = ("recording.yaml", "alerts.yaml")
HEAD: Final = "# Made of deploy/prometheus by `python -m deploy.prometheus.as_object`.\n"


def as_object(namespace: str = "llm") -> dict[str, Any]:
    groups = [
        group
        for name in FILES
        for group in yaml.safe_load((HERE / name).read_text(encoding="utf-8"))["groups"]
    ]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "pdgate", "namespace": namespace},
        "spec": {"groups": groups},
    }


def text() -> str:
    said: str = yaml.safe_dump(as_object(), sort_keys=False, width=100)
    return HEAD + said


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
    print(f"{TARGET.relative_to(Path.cwd())} is written")
