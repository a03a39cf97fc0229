"""A module of a few lines that one other module imports is a part of that one, with a door between.

What is loaded by name, as an entry point of pyproject.toml says, is an extension point: it stands
alone however short it is.
"""

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

pytestmark = pytest.mark.source

ROOT: Final = Path(__file__).parents[1]
PACKAGE: Final = ROOT / "src" / "pdgate"
LEAST_LINES: Final = 40

EXTENSION_POINTS: Final[frozenset[str]] = frozenset()
"""Those that no entry point names, each with its reason."""


def sources() -> Mapping[str, str]:
    """Module, without "pdgate.", -> its source."""
    # Not rglob("**"), which does not follow links before Python 3.13.
    folders = [found for found in PACKAGE.iterdir() if found.is_dir() and found.name[0] != "_"]
    return {
        ".".join((folder.name, *path.relative_to(folder.resolve()).with_suffix("").parts)): (
            path.read_text(encoding="utf-8")
        )
        for folder in folders
        for path in folder.resolve().rglob("*.py")
    }


def small_with_one_importer(texts: Mapping[str, str]) -> set[str]:
    importers = defaultdict(set)
    for importer, text in texts.items():
        for name in imported(text):
            importers[name].add(importer)
    return {
        name
        for name, text in texts.items()
        if len(text.splitlines()) < LEAST_LINES
        and not name.endswith(".__init__")
        and len(importers[name] - {name}) == 1
    }


def imported(text: str) -> Iterator[str]:
    """Whatever an import of pdgate's may mean: a module, or a name in one."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.ImportFrom(module=str(module)):
                names = [module, *(f"{module}.{name.name}" for name in node.names)]
            case ast.Import():
                names = [name.name for name in node.names]
            case _:
                continue
        yield from (name.removeprefix("pdgate.") for name in names)


def entry_points() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = project["entry-points"].values()
    return {
        target.partition(":")[0].removeprefix("pdgate.")
        for group in groups
        for target in group.values()
    }


def test_no_small_module_has_a_single_importer() -> None:
    allowed = entry_points() | EXTENSION_POINTS

    assert small_with_one_importer(sources()) - allowed == set()


def test_a_small_module_with_a_single_importer_is_found() -> None:
    long = "\n" * LEAST_LINES
    texts = {
        "a.small": "X = 1\n",
        "a.shared": "X = 1\n",
        "a.long": long,
        "a.one": f"from pdgate.a.small import X\nfrom pdgate.a import shared, long\n{long}",
        "a.two": f"def f():\n    import pdgate.a.shared\n{long}",
    }

    assert small_with_one_importer(texts) == {"a.small"}
