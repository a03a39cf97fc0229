"""What is said of packages that are missing can be done."""

import re
import tomllib
from pathlib import Path

import pytest

from pdgate.protocols.extras import IN_IMAGE, install

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.source


def test_the_image_has_what_the_sentence_says() -> None:
    dockerfile = (ROOT / "deploy" / "docker" / "Dockerfile").read_text(encoding="utf-8")
    found = re.search(r"pdgate\[([^\]]+)\] @", dockerfile)
    assert found is not None

    assert frozenset(found[1].split(",")) == IN_IMAGE
    assert "image" in install("redis")
    assert "image" not in install("nixl")


def test_no_message_and_no_page_names_a_package_on_an_index() -> None:
    """There is none yet. Old entries of the changelog say what was said then."""
    there = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = (
        "cluster",
        "deploy",
        "docs",
        "engine",
        "forwarders",
        "gateway",
        "lab",
        "operations",
        "protocols",
    )
    more = ("scheduling", "src", "transfer")
    files = [
        path
        for folder in (*folders, *more)
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".md", ".service", ".yaml", ".txt", ".tpl") and path.is_file()
    ]
    files.append(ROOT / "README.md")
    said = {path: path.read_text(encoding="utf-8") for path in files}

    assert [str(path) for path, text in said.items() if "install 'pdgate" in text] == []
    assert [str(path) for path, text in said.items() if "pip install pdgate" in text] == []
    named = {name for text in said.values() for name in re.findall(r"'\.\[([\w,-]+)\]'", text)}
    extras = there["project"]["optional-dependencies"].keys()
    assert {one for name in named for one in name.split(",")} <= extras
