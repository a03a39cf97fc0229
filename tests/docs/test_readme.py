"""README.md is one screen, and shows what there is."""

import re
import tomllib
from typing import Any

import pytest

from pdgate.protocols import plugins
from tests.docs.pages import DOCS, table

ROOT = DOCS.parent
PAGE = ROOT / "README.md"
TEXT = PAGE.read_text(encoding="utf-8")

pytestmark = pytest.mark.source


def _project() -> dict[str, Any]:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found: dict[str, Any] = tomllib.loads(text)["project"]
    return found


def test_it_is_one_screen() -> None:
    assert len(TEXT.splitlines()) <= 60


def test_it_names_every_protocol() -> None:
    assert [name for name in plugins.names(plugins.FORWARDERS) if f"`{name}`" not in TEXT] == []


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)", TEXT)

    assert len(links) > 20
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_dependencies_that_it_explains_are_those_that_we_have() -> None:
    """Those with an extra are in that extra; the others are always installed."""
    project = _project()
    rows = {row[0]: row for row in table(PAGE)}
    assert {"FastAPI", "uvicorn", "httpx2"} <= rows.keys()

    for cell in rows:
        package, *rest = cell.split(", ", 1)
        lists = [project["dependencies"]]
        if rest:
            lists = [
                project["optional-dependencies"][extra] for extra in re.findall("`(.+?)`", rest[0])
            ]
        for names in lists:
            assert any(re.match(rf"{package}\b(?!-)", name, re.IGNORECASE) for name in names), cell
