"""The images: on a Python that is tested, with what pyproject.toml asks for, and all that a gateway may need."""

import re
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.source

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
GATEWAY = (ROOT / "deploy/docker/Dockerfile").read_text(encoding="utf-8")
VLLM = (ROOT / "deploy/docker/vllm.Dockerfile").read_text(encoding="utf-8")
MINOR = re.compile(r"Python :: (3\.\d+)$")


def classified() -> set[str]:
    return {found[1] for one in PROJECT["classifiers"] if (found := MINOR.search(one))}


def test_only_versions_that_are_run_are_named() -> None:
    """`make test` has the Python that tools/virtual_env.sh finds at least."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lowest = PROJECT["requires-python"].removeprefix(">=")
    newer = set(re.findall(r"tools/python_of\.sh (3\.\d+)", makefile))
    ran = (ROOT / ".ci/run").read_text(encoding="utf-8")

    assert classified() == {lowest, *newer}
    assert {"make test", "make newer"} <= set(re.findall(r"^part \d+ (.+)$", ran, re.MULTILINE))


def test_the_gateways_image_has_a_python_that_is_run() -> None:
    (python,) = re.findall(r"^ARG PYTHON=(\S+)$", GATEWAY, re.MULTILINE)

    assert python in classified()


def test_the_gateways_image_has_every_extra_of_a_gateway() -> None:
    (extras,) = re.findall(r'"pdgate\[([a-z,-]+)\] @', GATEWAY)
    # KV transfer libraries are of engines, and what computes on a GPU has an image of its own.
    of_others = {"mooncake", "mooncake-cpu", "nixl", "torch"}

    assert set(extras.split(",")) == set(PROJECT["optional-dependencies"]) - of_others


def test_vllms_image_gets_what_pdgate_asks_for_beside_vllm() -> None:
    (asked,) = (one for one in PROJECT["dependencies"] if one.startswith("msgspec"))
    # A prefill queue is in Redis.
    (queue,) = PROJECT["optional-dependencies"]["redis"]

    assert f"'{asked}'" in VLLM
    assert f"'{queue}'" in VLLM
