"""Files of tests with a mark, found without importing them: that takes twenty seconds, in each of several processes.

A file has such tests if it says so itself, or its folder's conftest.py, or what either has from tests/support. Where
all files are imported anyhow, tests/test_marked_files.py looks whether that holds.
"""

import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.matrix import MARK

FOUND_BY_NAME: Final = ("slow", MARK)
"""`-m` with one of these alone asks for few files."""

hidden: Final[list[str]] = []
"""Tests that were collected here though they would not be found, before `-m` took any away."""

SUPPORT: Final = Path(__file__).parent / "support"
_helpers = re.compile(r"^from tests\.support\.(\w+) import", re.MULTILINE).findall


@cache
def may_have(file: Path, mark: str) -> bool:
    said = [one.read_text() for one in (file, file.with_name("conftest.py")) if one.exists()]
    helpers = {SUPPORT / f"{name}.py" for text in said for name in _helpers(text)}
    said += [one.read_text() for one in helpers if one.exists()]
    return any(f"mark.{mark}" in text for text in said)


def is_left_out(file: Path, expression: str) -> bool:
    """Whether `-m expression` needs nothing of what is in this file."""
    return expression in FOUND_BY_NAME and file.is_file() and not may_have(file, expression)


def is_hidden(item: pytest.Item) -> bool:
    """Whether it has a mark by which it would not be found."""
    return any(
        item.get_closest_marker(mark) and not may_have(item.path, mark) for mark in FOUND_BY_NAME
    )
