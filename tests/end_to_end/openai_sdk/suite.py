"""openai-python's own tests, from the source distribution of the installed version.

The wheel does not carry them, so the source is fetched, once for each version, and gets a
virtual environment of its own: what those tests need is no business of this project's
environment. Where both lie: tests/support/environments.py.
"""

import re
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tests.support.environments import kept, make, pip, python_in

# What tests/conftest.py there imports; the extra is for its clients over aiohttp.
NEEDS: Final = ("openai[aiohttp]=={version}", "pytest>=8", "pytest-asyncio>=1.0", "rich")

FILES: Final = (
    "tests/api_resources/chat/test_completions.py",
    "tests/api_resources/test_completions.py",
)
"""Their routes are the ones that the gateway serves."""


@dataclass(frozen=True, slots=True)
class Suite:
    source: Path
    python: Path

    def models(self) -> Sequence[str]:
        """The names that the tests ask for."""
        text = "".join((self.source / file).read_text() for file in FILES)
        return sorted(set(re.findall(r'\bmodel="([^"]+)"', text)))


def cached() -> Suite:
    """The suite of the installed `openai`. Raises CalledProcessError where pip finds no source."""
    release = version("openai")
    needs = [need.format(version=release) for need in NEEDS]
    with kept(f"openai-python-{release}", needs) as (folder, complete):
        if not complete:
            make(folder / "venv", *needs)
            _fetch(release, folder, python_in(folder / "venv"))
        return Suite(folder / f"openai-{release}", python_in(folder / "venv"))


def _fetch(release: str, folder: Path, python: Path) -> None:
    """By that one's pip: an environment that uv has made has none."""
    pip(
        python,
        *("download", "--no-deps", "--no-binary", "openai"),
        *("--dest", str(folder), f"openai=={release}"),
    )
    with tarfile.open(folder / f"openai-{release}.tar.gz") as archive:
        archive.extractall(folder, filter="data")


if __name__ == "__main__":
    # Before the tests, which run where there is no network.
    cached()
