"""openai-python's own tests, from the source distribution of the installed version.

The wheel does not carry them, so the source is fetched, once for each version, and gets a
virtual environment of its own: what those tests need is no business of this project's
environment. Both lie in

    ${PDGATE_CACHE:-${XDG_CACHE_HOME:-~/.cache}/pdgate}/openai-python-<version>-<python>-<recipe>
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

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
    recipe = hashlib.sha256("\n".join([sys.version, *needs]).encode()).hexdigest()[:8]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = _cache() / f"openai-python-{release}-{python}-{recipe}"
    folder.mkdir(parents=True, exist_ok=True)
    suite = Suite(folder / f"openai-{release}", folder / "venv/bin/python")
    with _locked(folder / "lock"):
        if not (folder / "complete").exists():
            _fetch(release, folder)
            shutil.rmtree(folder / "venv", ignore_errors=True)
            venv.create(folder / "venv", with_pip=True)
            _pip(suite.python, "install", *needs)
            (folder / "complete").touch()
    return suite


def _fetch(release: str, folder: Path) -> None:
    _pip(
        Path(sys.executable),
        *("download", "--no-deps", "--no-binary", "openai"),
        *("--dest", str(folder), f"openai=={release}"),
    )
    with tarfile.open(folder / f"openai-{release}.tar.gz") as archive:
        archive.extractall(folder, filter="data")


def _pip(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True)


def _cache() -> Path:
    if folder := os.environ.get("PDGATE_CACHE"):
        return Path(folder)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "pdgate"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Two test runs at once do not build on top of each other."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    # Before the tests, which run where there is no network.
    cached()
