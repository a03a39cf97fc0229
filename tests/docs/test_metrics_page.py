"""The page on metrics names what /metrics shows, no more and no less."""

import re
from itertools import chain
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import pdgate.gateway
from pdgate.engine.cache.tier_spec import TierSpec
from pdgate.engine.cache.tiers import Tier, Tiers
from pdgate.engine.hand_over.blocks import NamedBlocks
from pdgate.engine.metrics import EngineMetrics
from pdgate.engine.work import Options
from pdgate.forwarders.record import STAGES
from pdgate.gateway.metrics import families
from pdgate.gateway.metrics.family import MetricDeclaration
from pdgate.gateway.metrics.histogram import SECONDS
from pdgate.transfer.runtime.refusals import Reason, Refusals
from tests.docs.pages import DOCS, code, table
from tests.support.engine_cores import engine, layout
from tests.support.fake_connector import FakeConnector, Meeting

PAGE = DOCS / "operations" / "metrics.md"
DECLARED = {name: one for name, one in vars(families).items() if isinstance(one, MetricDeclaration)}

pytestmark = pytest.mark.source

Shown = dict[str, tuple[str, frozenset[str]]]


def test_the_page_has_every_metric_of_the_gateway() -> None:
    declared = {_name(one): (one.kind, frozenset(one.labels)) for one in DECLARED.values()}

    assert len(declared) == len(DECLARED), "two have one name"
    assert _on_page("`pdgate_", but_not="`pdgate_engine_") == declared


def test_every_metric_that_is_declared_is_shown_and_no_other() -> None:
    """None goes around its declaration, which says how workers' values merge."""
    sources = [
        path.read_text(encoding="utf-8") for path in Path(pdgate.gateway.__path__[0]).rglob("*.py")
    ]

    used = chain.from_iterable(re.findall(r"\bfamilies\.([A-Z_]+)\b", text) for text in sources)
    assert set(used) - {"NAME", "EVENTS"} == set(DECLARED)
    assert not any("MetricFamily" in text for text in sources)


def test_the_page_has_every_metric_of_the_engine(tmp_path: Path) -> None:
    tier = Tier(TierSpec("disk", str(tmp_path / "tier"), 1 << 20))
    blocks = NamedBlocks(layout(), "m", [memoryview(bytearray(layout().total_bytes))])
    made = engine(Options(tiers=Tiers([tier], blocks, "m"), speculate=2))
    connector = FakeConnector(made.core, made.memory, Meeting(layout()))
    registry = CollectorRegistry()
    refusals = Refusals()
    refusals.add("tcp", Reason.SECRET)
    registry.register(EngineMetrics(made.core, connector, "tiny", refusals))

    assert _on_page("`vllm:", "`pdgate_engine_") == _exposed(registry)


def test_the_page_gives_the_range_of_the_buckets() -> None:
    assert f"in seconds: {SECONDS[0]:g} to {SECONDS[-1]:g}." in PAGE.read_text(encoding="utf-8")


def test_the_page_has_every_stage_in_the_order_of_time() -> None:
    text = PAGE.read_text(encoding="utf-8")
    section = text[text.index("## Stages") : text.index("## TPOT")]

    assert re.findall(r"^\| `(\w+)`", section, re.MULTILINE) == list(STAGES)


def _name(family: MetricDeclaration) -> str:
    return f"{family.name}_total" if family.kind == "counter" else family.name


def _on_page(*prefixes: str, but_not: str = "-") -> Shown:
    """Name -> type and labels, from the rows of the tables."""
    return {
        code(row[0])[0]: (row[1], frozenset(code(row[2])))
        for row in table(PAGE)
        if row[0].startswith(prefixes) and not row[0].startswith(but_not)
    }


def _exposed(registry: CollectorRegistry) -> Shown:
    """Name -> type and labels, as Prometheus reads them."""
    shown: Shown = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        assert family.samples, f"{family.name} has no sample, so its labels are not known"
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        name = f"{family.name}_total" if family.type == "counter" else family.name
        shown[name] = (family.type, frozenset(labels))
    return shown
