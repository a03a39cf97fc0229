"""Fenced blocks of a page, so that tests can run what the page says.

The word after the language says what a block is: a file to write, or a labelled example.

    ```python brook.py          language "python", label "brook.py"
    ```json batch prefill       language "json", label "batch prefill"
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).parents[2] / "docs"

_FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    label: str
    text: str


def blocks(page: Path) -> list[Block]:
    """In the order of the page; a fence without a language is a picture and left out."""
    found = _FENCE.findall(page.read_text(encoding="utf-8"))
    return [Block(language, label.strip(), text) for language, label, text in found]


def labelled(page: Path, language: str) -> dict[str, str]:
    """Label -> text of the page's blocks in a language. Raises ValueError for a double label."""
    found: dict[str, str] = {}
    for block in blocks(page):
        if block.language == language and block.label:
            if block.label in found:
                raise ValueError(f"{page.name} has two {language} blocks {block.label!r}")
            found[block.label] = block.text
    return found


def table(page: Path) -> list[list[str]]:
    """Cells of all rows of the page's tables, headings and rulers left out."""
    rows = []
    lines = page.read_text(encoding="utf-8").splitlines()
    for above, line in zip(["", *lines], lines, strict=False):
        is_body = line.startswith("|") and above.startswith("|") and not line.startswith("|--")
        if is_body:
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def code(cell: str) -> list[str]:
    """What a cell shows as code."""
    return re.findall(r"`([^`]+)`", cell)
