"""A protocol is at most 120 lines of the gateway: its forwarder, its dialect, its directory, and whatever else only they import.

That is the measure of the contracts: a protocol that needs more of its own shows that one is missing.
"""

import ast
from collections import defaultdict
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Final

import pytest

from tests.test_small_modules import imported, sources

pytestmark = pytest.mark.source

MOST_LINES: Final = 120
OF_THE_FIRST_VERSION: Final = frozenset(
    {"decode-first", "neuron", "plain", "sglang", "vllm-kvt", "vllm-mooncake", "vllm-nixl"}
)
CONTRACTS: Final = frozenset({"cluster.heartbeats"})
"""What a page offers to protocols of others as well (docs/add-a-directory.md), though one of ours uses it today."""
DIRECTORIES: Final = {
    point.name: point.module.removeprefix("pdgate.")
    for point in entry_points(group="pdgate.directories")
}
NEW: Final = sorted(
    point.name
    for point in entry_points(group="pdgate.forwarders")
    if point.module.startswith("pdgate.") and point.name not in OF_THE_FIRST_VERSION
)


def code_lines(text: str) -> int:
    """Lines that are no comment, no docstring and not empty."""
    said = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    return sum(
        bool(line.strip()) and not line.lstrip().startswith("#")
        for number, line in enumerate(text.splitlines(), 1)
        if number not in said
    )


def importers_of(texts: Mapping[str, str]) -> Mapping[str, set[str]]:
    """Of each module of the gateway's: an engine's side is a connector of its own."""
    gateways = {name: text for name, text in texts.items() if not name.startswith("engine.")}
    found = defaultdict(set)
    for importer, text in gateways.items():
        for name in imported(text):
            if name in gateways and name != importer:
                found[name].add(importer)
    return found


def only_of(own: set[str], importers: Mapping[str, set[str]]) -> set[str]:
    """`own`, and what nothing but them imports, and so on."""
    found = set(own)
    while more := {name for name, by in importers.items() if by <= found} - found - CONTRACTS:
        found |= more
    return found


@pytest.fixture(scope="module")
def texts() -> Mapping[str, str]:
    return sources()


@pytest.fixture(scope="module")
def importers(texts: Mapping[str, str]) -> Mapping[str, set[str]]:
    return importers_of(texts)


@pytest.mark.parametrize("protocol", NEW)
def test_a_protocol_is_at_most_120_lines(
    protocol: str, texts: Mapping[str, str], importers: Mapping[str, set[str]]
) -> None:
    (forwarder,) = entry_points(group="pdgate.forwarders", name=protocol)
    own = {forwarder.module.removeprefix("pdgate.")}
    own |= {DIRECTORIES[protocol]} & texts.keys() if protocol in DIRECTORIES else set()

    found = {name: code_lines(texts[name]) for name in only_of(own, importers)}

    assert sum(found.values()) <= MOST_LINES, found


def test_what_only_one_protocol_imports_is_counted() -> None:
    texts = {
        "forwarders.a": "from pdgate.protocols.dialects import a\n",
        "protocols.dialects.a": "from pdgate.cluster.rare import thing\n# no\n'''no'''\nyes = 1\n",
        "cluster.rare": "from pdgate.cluster.common import thing\n",
        "cluster.common": "",
        "forwarders.b": "from pdgate.cluster.common import thing\n",
        "engine.a": "from pdgate.cluster.rare import thing\n",
    }

    assert only_of({"forwarders.a"}, importers_of(texts)) == {
        "forwarders.a",
        "protocols.dialects.a",
        "cluster.rare",
    }
    assert code_lines(texts["protocols.dialects.a"]) == 2
