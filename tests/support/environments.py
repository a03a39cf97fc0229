"""Virtual environments for what has no business in the project's own, kept between runs.

    with kept("openai-python-3.54", recipe) as (folder, complete):
        if not complete: ...

They lie in ${PDGATE_CACHE:-${XDG_CACHE_HOME:-~/.cache}/pdgate}/<name>-<python>-<recipe>; a recipe
that changes makes a new one.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def kept(name: str, recipe: Sequence[str]) -> Iterator[tuple[Path, bool]]:
    """A folder, and whether a block before this one made it complete, which this one does now.

    Two test runs at once do not build on top of each other.
    """
    digest = hashlib.sha256("\n".join([sys.version, *recipe]).encode()).hexdigest()[:8]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = _cache() / f"{name}-{python}-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = folder / "complete"
        yield folder, done.exists()
        done.touch()


def make(folder: Path, *needs: str) -> None:
    """A virtual environment with these packages, where there may be half a one."""
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    pip(python_in(folder), "install", *needs)


def python_in(folder: Path) -> Path:
    return folder / "bin/python"


def pip(python: Path, *arguments: str) -> None:
    """Raises CalledProcessError."""
    command = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True)


def _cache() -> Path:
    if folder := os.environ.get("PDGATE_CACHE"):
        return Path(folder)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "pdgate"
