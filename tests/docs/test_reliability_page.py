"""The pages on reliability and on what others have name tests that there are."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS

pytestmark = pytest.mark.source

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("page", ["reliability.md", "comparison.md"])
def test_every_row_has_the_test_that_it_names(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", text))
    there = {
        name
        for file in TESTS.rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)\(", file.read_text(encoding="utf-8"))
    }

    assert named - there == set()
    files = set(re.findall(r"`(tests/[\w/]+\.py)`", text))
    assert [file for file in files if not (TESTS.parent / file).is_file()] == []


def test_no_row_is_without_a_test() -> None:
    text = (DOCS / "reliability.md").read_text(encoding="utf-8")
    tables = (part for part in re.split(r"\n\n", text) if part.startswith("|"))
    rows = [row for table in tables if "| test |" in table for row in table.splitlines()[2:]]

    assert [row for row in rows if "`test_" not in row] == []
