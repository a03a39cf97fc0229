"""docs/operations/kubernetes.md names the labels and options that there are, and no others."""

import re

import pytest

from pdgate.cluster.kubernetes import directory, slices
from pdgate.protocols import options
from tests.docs.pages import DOCS

PAGE = DOCS / "operations" / "kubernetes.md"

pytestmark = pytest.mark.source


def test_the_page_names_the_labels() -> None:
    prefix = slices.PREFIX
    read = {*slices.TEXTS, *slices.COUNTS, "role", "port", "kv-port"}

    assert first_cells("label") == {f"{prefix}{name}" for name in read}


def test_the_page_names_the_options() -> None:
    assert first_cells("option") == set(options.kinds(directory.opened))


def first_cells(heading: str) -> set[str]:
    """What stands in code there, in the table whose first column is called so."""
    text = PAGE.read_text(encoding="utf-8")
    table = text.partition(f"| {heading} | meaning |")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
