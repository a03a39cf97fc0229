"""The tutorial's backend, exactly as the page prints it, keeps the contract of all."""

import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdgate.transfer import registry
from tests.docs.package import write
from tests.docs.pages import DOCS, labelled
from tests.support.ports import free_port
from tests.support.processes import child

PAGE = DOCS / "add-a-backend.md"

pytestmark = pytest.mark.source


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Installed while the test runs, for its children too."""
    write(PAGE, tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    yield tmp_path
    sys.modules.pop("pdgate_cma", None)


def test_an_entry_point_is_all_that_it_takes(package: Path) -> None:
    backend = registry.load("cma")
    backend.close()

    assert type(backend).__module__ == "pdgate_cma"


@pytest.mark.slow
def test_it_keeps_the_contract(package: Path) -> None:
    setting, *command = shlex.split(labelled(PAGE, "sh")["contract"])
    name, _, value = setting.partition("=")
    words = [*_program(command), "-q", "-p", "no:cacheprovider"]

    with child(words, cwd=DOCS.parent, env={name: value}, name="pytest") as running:
        assert running.wait_for_end(120) == 0, running.tail()
        assert int(re.findall(r"(\d+) passed", running.tail())[0]) >= 30
        assert "skipped" not in running.tail()


@pytest.mark.slow
def test_an_engine_starts_with_it(package: Path) -> None:
    text = labelled(PAGE, "sh")["use"].replace("8100", str(free_port()))

    with child(_program(shlex.split(text)), name="engine") as engine:
        engine.wait_for_line(r"engine ready \S+ role=prefill protocol=vllm-nixl", 60)


def _program(words: list[str]) -> list[str]:
    programs = {"python": [sys.executable], "pdgate": [sys.executable, "-m", "pdgate"]}
    return [*programs[words[0]], *words[1:]]
