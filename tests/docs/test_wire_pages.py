"""What the pages on protocols show is what the forwarders send."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pdgate.forwarders import registry
from pdgate.forwarders.base import Mode
from pdgate.protocols import plugins
from tests.docs import wire
from tests.docs.pages import blocks
from tests.docs.shell import of_page, parts

pytestmark = pytest.mark.source


@pytest.mark.parametrize("page", wire.pages(), ids=lambda page: page.stem)
def test_a_page_shows_every_leg_as_the_forwarder_makes_it(page: Path) -> None:
    """`python -m tests.docs.wire` writes the examples anew."""
    assert wire.shown(page) == wire.made(page)


def test_every_protocol_has_a_page() -> None:
    ours = {point for point in plugins.names(plugins.FORWARDERS) if _is_ours(point)}

    assert {page.stem for page in wire.pages()} == ours


@pytest.mark.parametrize("page", wire.pages(), ids=lambda page: page.stem)
def test_a_page_draws_who_asks_whom_in_each_mode(page: Path) -> None:
    from tools.sequence import drawn, read

    diagrams = [read(block.text) for block in blocks(page) if block.language == "mermaid"]

    titles = " ".join(one.title for one in diagrams)
    drawn_modes = {mode for mode in Mode if re.search(rf"\b{mode.value}\b", titles)}
    # Of protocols with generations, what at least one can do.
    kinds = registry.generations(page.stem) or ("",)
    assert drawn_modes == {
        mode for mode in Mode for kind in kinds if not registry.modes(page.stem, kind)[mode]
    }
    for one in diagrams:
        said = "".join(ElementTree.fromstring(drawn(one)).itertext())
        assert all(row.text in said for row in one.rows)


@pytest.mark.parametrize(
    "line", ["participant", "A->>B: hello", "A-)A: hello", "loop every day", "A->>A"]
)
def test_what_cannot_be_drawn_is_named(line: str) -> None:
    from tools.sequence import Unknown, read

    with pytest.raises(Unknown, match=re.escape(line)):
        read(f"sequenceDiagram\nparticipant A\n{line}\n")


@pytest.mark.parametrize("name", ["vllm-nixl", "vllm-mooncake", "vllm-kvt", "decode-first"])
def test_the_flags_of_vllm_are_those_that_it_is_tested_with(name: str) -> None:
    """Of addresses only that they are said, and not what only a CPU needs."""
    from tests.end_to_end.vllm import engines

    transfer = {"vllm-nixl": engines.NIXL, "vllm-mooncake": engines.MOONCAKE}.get(
        name, engines.PDGATE_TCP
    )
    shown = _configs(wire.FOLDER / f"{name}.md")

    assert [one["kv_role"] for one in shown] == ["kv_producer", "kv_consumer"]
    for one in shown:
        _, text = transfer.flags(one["kv_role"], 8100, 28000)
        tested = json.loads(text)
        for config in (one, tested):
            config.pop("kv_port", None)
            config.get("kv_connector_extra_config", {}).pop("api", None)
        # A queue is one more option of decode's (test_prefill_queue.py).
        one.get("kv_connector_extra_config", {}).pop("queue", None)
        assert _without(one, NOT_SAID) == _without(tested, [*NOT_SAID, *ONLY_ON_CPU])
    assert transfer.port_variable in (wire.FOLDER / f"{name}.md").read_text(encoding="utf-8")


NOT_SAID = ("lease_seconds", "mode", "mover")
"""Set by the tests to what they need, or to the default."""
ONLY_ON_CPU = ("kv_buffer_device", "mooncake_on_cpu")


def _without(config: dict[str, Any], names: Any) -> dict[str, Any]:
    return {
        name: _without(value, names) if isinstance(value, dict) else value
        for name, value in config.items()
        if name not in names and not (isinstance(value, str) and value in names)
    }


def _configs(page: Path) -> list[dict[str, Any]]:
    found = [part for one in of_page(page) for part in parts(one.text) if part[0] == "vllm"]
    return [json.loads(words[words.index("--kv-transfer-config") + 1]) for words in found]


def _is_ours(protocol: str) -> bool:
    package = plugins.find(plugins.FORWARDERS, "protocol", protocol).dist
    return package is not None and package.name == "pdgate"
