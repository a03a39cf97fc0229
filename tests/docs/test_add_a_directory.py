"""The tutorial's directory, exactly as the page prints it, tells who is there."""

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdgate.gateway.config import load
from pdgate.gateway.config.directory import directory_of
from tests.support.processes import child

pytestmark = pytest.mark.source


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Installed while the test runs."""
    from tests.docs.package import write
    from tests.docs.pages import DOCS

    write(DOCS / "add-a-directory.md", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("pdgate_consul", None)


def test_an_entry_point_is_all_that_it_takes(package: Path) -> None:
    """Opened from the configuration of the page's flags."""
    from tests.docs.pages import DOCS, labelled

    words = shlex.split(labelled(DOCS / "add-a-directory.md", "sh")["serve"])
    given = dict(zip(words[2::2], words[3::2], strict=True))
    settings = load(
        None,
        {
            "directory": given["--directory"],
            "directory_options": [given["--directory-option"]],
        },
    )

    assert type(directory_of(settings)).__module__ == "pdgate_consul"


def test_the_tutorials_own_tests_pass(package: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_consul.py"]

    with child(command, cwd=package, env={"PYTHONPATH": str(package)}, name="pytest") as running:
        assert running.wait_for_end() == 0, running.tail()
        assert "4 passed" in running.tail()
