"""A real Prometheus, asked over its HTTP API.

Where Debian's package `prometheus` is missing, a test that asks for it is skipped; with CI set it fails.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.ports import free_port
from tests.support.processes import Child, child
from tests.support.waiting import PATIENCE_SECONDS


def required(program: str) -> str:
    """Its path."""
    found = shutil.which(program)
    if found is None:
        missing = f"{program} is not installed: apt-get install prometheus"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return found


@dataclass(frozen=True, slots=True)
class Series:
    """
    Attributes:
        values: (time, value), in seconds since 1970; one of an instant query.
    """

    labels: dict[str, str]
    values: list[tuple[float, float]]


class Refused(AssertionError):
    """Prometheus does not understand a query, or cannot answer it."""


class Prometheus:
    def __init__(self, http: httpx2.Client, process: Child) -> None:
        self.process = process
        self._http = http

    def now(self, expr: str) -> list[Series]:
        """Raises Refused."""
        found = self.get("query", query=expr)["result"]
        return [Series(each["metric"], [_point(each["value"])]) for each in found]

    def over(self, expr: str, start: float, end: float, step: float) -> list[Series]:
        """Raises Refused."""
        found = self.get("query_range", query=expr, start=start, end=end, step=step)["result"]
        return [Series(each["metric"], list(map(_point, each["values"]))) for each in found]

    def until(self, expr: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Until a query has a result."""
        self.process.wait_until(lambda: self.now(expr), f"a result of {expr}", seconds)

    def get(self, what: str, **query: object) -> Any:
        answer = self._http.get(f"/api/v1/{what}", params={k: str(v) for k, v in query.items()})
        said = answer.json()
        if said["status"] != "success":
            raise Refused(f"{query}: {said['error']}")
        return said["data"]


@contextmanager
def prometheus(
    folder: Path, targets: Mapping[str, Sequence[str]], rules: Sequence[Path] = ()
) -> Iterator[Prometheus]:
    """Scrapes `targets` (job -> host:port) twice a second, as deploy/prometheus/prometheus.yaml says."""
    import yaml

    program = required("prometheus")
    shown = Path(__file__).parents[2] / "deploy" / "prometheus" / "prometheus.yaml"
    said = yaml.safe_load(shown.read_text(encoding="utf-8"))
    said["global"] = {"scrape_interval": "500ms", "evaluation_interval": "1s"}
    said["rule_files"] = [str(file) for file in rules]
    for job in said["scrape_configs"]:
        job["static_configs"] = [{"targets": list(targets[job["job_name"]])}]
    config = folder / "prometheus.yml"
    config.write_text(json.dumps(said))
    address = f"127.0.0.1:{free_port()}"
    command = [
        *(program, f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}"),
        f"--web.listen-address={address}",
    ]
    with child(command, name="prometheus") as process:
        process.wait_for_http(f"http://{address}/-/ready", PATIENCE_SECONDS)
        with httpx2.Client(
            base_url=f"http://{address}", trust_env=False, timeout=PATIENCE_SECONDS
        ) as http:
            yield Prometheus(http, process)


def _point(said: tuple[float, str]) -> tuple[float, float]:
    time, value = said
    return float(time), float(value)
