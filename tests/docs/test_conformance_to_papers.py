"""docs/conformance-to-papers.md and docs/from-llumnix.md name files, classes and tests that there are."""

import ast
import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, code, table

PAGE = DOCS / "conformance-to-papers.md"
LLUMNIX = DOCS / "from-llumnix.md"
ROOT = DOCS.parent
NOT_BUILT = "not built"
ROWS = [row for row in table(PAGE) if len(row) == 4]

pytestmark = pytest.mark.source


def functions_of(path: Path) -> set[str]:
    """Names of its test functions, those of classes included."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, functions)}


@pytest.mark.parametrize("row", ROWS, ids=[row[0][:60] for row in ROWS])
def test_a_mechanism_is_where_the_page_says_and_its_test_is_there(row: list[str]) -> None:
    mechanism, where, proof, _ = row

    if where == NOT_BUILT:
        assert not proof, f"{mechanism}: what is not built is proved by nothing"
        return
    files = code(where)
    assert files, f"{mechanism}: no file is named"
    for file in files:
        assert (ROOT / file).is_file(), f"{mechanism}: there is no {file}"
    tests = code(proof)
    assert tests, f"{mechanism}: no test is named"
    for test in tests:
        path, _, name = test.partition("::")
        assert name in functions_of(ROOT / path), f"{mechanism}: there is no {test}"


def test_what_is_not_built_has_its_reason() -> None:
    lacking = [row for row in ROWS if row[1] == NOT_BUILT]

    assert lacking
    assert all(row[3] for row in lacking)


def test_every_system_has_its_table() -> None:
    text = PAGE.read_text(encoding="utf-8")

    for system in ("AWS Neuron", "NVIDIA Dynamo", "Llumnix", "Perplexity"):
        (section,) = re.findall(rf"^## {system}.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        assert "\n|---|---|---|---|\n" in section


def test_llumnixs_parts_are_where_the_page_says() -> None:
    """A class or method that is named behind a file is in that file."""
    named = 0
    for row in table(LLUMNIX):
        here = row[1] if len(row) > 1 else ""
        for file, name in re.findall(r"`([\w/]+\.py)`(?:: `([\w.]+)`)?", here):
            named += 1
            assert (ROOT / file).is_file(), f"{row[0]}: there is no {file}"
            if name:
                text = (ROOT / file).read_text(encoding="utf-8")
                for part in name.split("."):
                    assert re.search(rf"\b{part}\b", text), f"{row[0]}: {file} has no {name}"
    assert named > 15
