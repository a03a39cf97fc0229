"""The clients that are tested, in a virtual environment of their own.

They do not go together with the project's: some of them hold `openai` back by a major version.
What they are is the dependency group `clients` in pyproject.toml.
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.support.environments import kept, make, python_in

GROUP: Final = "clients"
PYPROJECT: Final = Path(__file__).parents[3] / "pyproject.toml"


def needs() -> Sequence[str]:
    found: list[str] = tomllib.loads(PYPROJECT.read_text())["dependency-groups"][GROUP]
    return found


def python() -> Path:
    """The one that has them. Raises CalledProcessError where pip does not find them."""
    wanted = needs()
    with kept(GROUP, wanted) as (folder, complete):
        if not complete:
            make(folder / "venv", *wanted)
        return python_in(folder / "venv")


if __name__ == "__main__":
    # Before the tests, which run where there is no network.
    python()
