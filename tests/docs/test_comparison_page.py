"""What docs/comparison.md says that pdgate lacks, it lacks."""

from collections.abc import Callable

import pytest

from pdgate.protocols import plugins
from tests.docs.pages import DOCS, table

PAGE = DOCS / "comparison.md"
ROOT = DOCS.parent
LACKING = [row[0] for row in table(PAGE) if len(row) == 3]

pytestmark = pytest.mark.source


def _no_protocol(*words: str) -> bool:
    names = " ".join(plugins.names(plugins.FORWARDERS))
    return not any(word in names for word in words)


def _nowhere(word: str, *folders: str) -> bool:
    return not any(
        word in path.read_text(encoding="utf-8")
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".yaml", ".tpl")
    )


# By the beginning of a row: what would be there if pdgate had it.
EVIDENCE: dict[str, Callable[[], bool]] = {
    "gRPC to engines": lambda: _nowhere("import grpc", "gateway/upstream", "forwarders"),
    "an operator": lambda: _nowhere("kind: CustomResourceDefinition", "deploy"),
    "WASM": lambda: _nowhere("wasmtime", "gateway"),
}


@pytest.mark.parametrize("beginning", EVIDENCE)
def test_what_is_said_to_be_lacking_is_lacking(beginning: str) -> None:
    assert [row for row in LACKING if row.startswith(beginning)]
    assert EVIDENCE[beginning]()
