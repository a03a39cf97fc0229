"""The picture in docs/architecture.md is the one that the project's own files draw."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from pdgate.forwarders import registry
from pdgate.forwarders.base import Delegation, Forwarder, HandOff, Mode, Plain, Rendezvous
from pdgate.protocols import plugins
from tests.docs.pages import DOCS, code, table

PAGE = DOCS / "architecture.md"
ROOT = DOCS.parent
PATTERNS: tuple[type[Forwarder], ...] = (HandOff, Rendezvous, Delegation, Plain)

pytestmark = pytest.mark.source


def test_the_import_layers_are_those_that_are_checked() -> None:
    contracts = _contracts()

    assert _drawn("__main__") == contracts["Each layer imports only downwards"]


def test_the_gateways_layers_are_those_that_are_checked() -> None:
    """Of the lowest, whose parts stand alone, some are drawn."""
    *checked, alone = _contracts()["Each part of the gateway imports only downwards"]

    *drawn, some = _drawn("cli")
    assert drawn == checked
    assert some
    assert set(some) <= set(alone)


def test_the_extension_points_are_those_that_are_declared() -> None:
    groups = {group for row in table(PAGE) for group in code(row[0]) if "." in group}

    assert groups == set(_project()["project"]["entry-points"])


def test_every_decision_is_listed_by_its_title() -> None:
    titles = {
        path.name: path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        for path in sorted((DOCS / "decisions").glob("*.md"))
    }

    listed = re.findall(r"^(\d+\. )\[(.+)\]\(decisions/(.+)\)$", _text(), re.MULTILINE)
    assert {name: number + title for number, title, name in listed} == titles


def test_the_folders_exist() -> None:
    folders = [name for row in table(PAGE) for name in code(row[0]) if name.endswith("/")]

    assert len(folders) == 11
    assert [folder for folder in folders if not (ROOT / folder).is_dir()] == []


def test_each_pattern_names_the_protocols_that_use_it() -> None:
    used = {row[0].strip("`"): set(code(row[-1])) for row in table(PAGE)}

    assert {kind.__name__: used[kind.__name__] for kind in PATTERNS} == {
        kind.__name__: _users(kind) for kind in PATTERNS
    }


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))

    assert [link for link in links if not (page.parent / link).exists()] == []


def _drawn(first: str) -> list[list[str]]:
    """Layers of the picture that begins with this one, without what is said of each."""
    drawn = re.search(rf"```\n({first}\n.*?)```", _text(), re.DOTALL)
    assert drawn is not None
    return [
        _neighbours(re.split(r" {3,}(?! *\|)", line)[0].removesuffix(" ..."))
        for line in drawn[1].splitlines()
    ]


def _contracts() -> dict[str, list[list[str]]]:
    """Each contract's layers, by its name."""
    return {
        found["name"]: [_neighbours(layer) for layer in found["layers"]]
        for found in _project()["tool"]["importlinter"]["contracts"]
        if found["type"] == "layers"
    }


def _neighbours(layer: str) -> list[str]:
    return [part.strip() for part in layer.split("|")]


def _users(pattern: type[Forwarder]) -> set[str]:
    """Protocols that cross in this way, in some mode and generation."""
    found = set()
    for name in plugins.names(plugins.FORWARDERS):
        declared = plugins.find(plugins.FORWARDERS, "protocol", name).load()
        members = getattr(declared, "members", {(mode, ""): declared for mode in Mode})
        makers = [maker for (mode, _), maker in members.items() if not registry.modes(name)[mode]]
        if any(isinstance(maker(), pattern) for maker in makers):
            found.add(name)
    return found


def _project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def _text() -> str:
    return PAGE.read_text(encoding="utf-8")
