"""What `kubectl kustomize` and `helm template` make of deploy/, as objects."""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

Json = dict[str, Any]

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm" / "pdgate"
KUBERNETES = "1.37"
NOT_OF_KUBERNETES = frozenset({"ServiceMonitor", "PrometheusRule"})
"""Objects of the Prometheus Operator, whose schemas are in no package."""


class NotRendered(Exception):
    """What the program said."""


@dataclass(frozen=True)
class Rendered:
    objects: Sequence[Json]

    def of(self, kind: str, name: str) -> Json:
        (found,) = (
            each
            for each in self.objects
            if each["kind"] == kind and each["metadata"]["name"] == name
        )
        return found

    def names(self, kind: str) -> list[str]:
        return [each["metadata"]["name"] for each in self.objects if each["kind"] == kind]

    def args(self, deployment: str) -> list[str]:
        args = container(self.of("Deployment", deployment))["args"]
        assert isinstance(args, list)
        return args

    def starts(self) -> list[str]:
        """Commands of the engines, but for SGLang's, whose start is not ours to judge."""
        words = (
            [*one.get("command", ()), *one["args"]]
            for each in self.objects
            if each["kind"] in ("Deployment", "StatefulSet")
            for one in each["spec"]["template"]["spec"]["containers"]
            if one["name"] == "vllm"
        )
        return [shlex.join(each) for each in words if "sglang.launch_server" not in each]

    def validate(self) -> None:
        """Kubernetes knows every field."""
        import kubernetes_validate

        for each in self.objects:
            if each["kind"] not in NOT_OF_KUBERNETES:
                kubernetes_validate.validate(each, KUBERNETES, strict=True)


def container(deployment: Json) -> Json:
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def kustomized(folder: Path) -> Rendered:
    return _read(_said([_program("kubectl"), "kustomize", str(folder)]))


def charted(values: Mapping[str, Any], *, release: str = "pdgate") -> Rendered:
    """Raises NotRendered."""
    import yaml

    command = [_program("helm"), "template", release, str(CHART), "--namespace", "llm"]
    return _read(_said([*command, "--values", "-"], yaml.safe_dump(dict(values))))


def linted(values: Mapping[str, Any]) -> str:
    import yaml

    command = [_program("helm"), "lint", "--strict", str(CHART), "--values", "-"]
    return _said(command, yaml.safe_dump(dict(values)))


def _said(command: Sequence[str], given: str = "") -> str:
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        raise NotRendered(done.stderr)
    return done.stdout


def _program(name: str) -> str:
    """Beside Python, where tools/kubectl_and_helm.py puts it."""
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        missing = f"there is no {path}: python tools/kubectl_and_helm.py {path.parent}"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return str(path)


def _read(text: str) -> Rendered:
    import yaml

    return Rendered([each for each in yaml.safe_load_all(text) if each])
