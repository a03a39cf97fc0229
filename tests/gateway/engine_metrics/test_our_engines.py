"""The families that are read are those that our own engines show."""

from prometheus_client import CollectorRegistry, generate_latest

from pdgate.engine.metrics import EngineMetrics
from pdgate.engine.vllm.metrics import COUNTERS as CONNECTOR_COUNTERS
from pdgate.engine.vllm.metrics import PREFIX
from pdgate.gateway.engine_metrics.counters import EngineCounters
from pdgate.gateway.engine_metrics.families import COUNTERS
from pdgate.gateway.engine_metrics.page import parse
from tests.support.engine_cores import engine, layout
from tests.support.fake_connector import FakeConnector, Meeting


def test_a_page_of_the_reference_engine_is_read() -> None:
    made = engine()
    stats = made.core.stats
    stats.prompts_computed, stats.prompts_from_cache, stats.prompts_from_peer = 1, 2, 3
    stats.prompts_chosen = 10
    stats.first_tokens, stats.steps, stats.stepping_seconds = 4, 5, 6.0
    connector = FakeConnector(made.core, made.memory, Meeting(layout()))
    moved = connector.counters
    moved.transfers, moved.failed, moved.expired = 7, 8, 9
    registry = CollectorRegistry()
    registry.register(EngineMetrics(made.core, connector, "tiny"))

    page = parse(generate_latest(registry))

    assert page.counters == EngineCounters(
        computed=1,
        chosen=10,
        cached=2,
        transferred=3,
        first_tokens=4,
        loads=7,
        loads_failed=8,
        expired=9,
        steps=5,
        step_seconds=6,
    )
    assert (page.running, page.waiting, page.transferring, page.queued_tokens) == (0, 0, 0, 0)
    assert (page.kv_used, page.kv_tokens) == (0, layout().blocks * layout().block_tokens)


def test_the_counters_of_our_connector_are_known() -> None:
    ours = {name for name in COUNTERS if name.startswith(PREFIX.encode())}

    assert ours == {f"{PREFIX}{name}_total".encode() for name in ("transfers", "failed", "expired")}
    assert {"transfers", "failed", "expired"} <= CONNECTOR_COUNTERS.keys()
