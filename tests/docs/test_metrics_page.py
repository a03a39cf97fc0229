"""The page on metrics names what /metrics shows, no more and no less."""

import asyncio
import re
from collections import Counter
from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pdgate.cluster.memory import Memory
from pdgate.engine.metrics import EngineMetrics
from pdgate.forwarders.base import Sink
from pdgate.forwarders.lives import Lives
from pdgate.forwarders.ownership import KvLedger
from pdgate.forwarders.record import DISAGGREGATED, STAGES, Record
from pdgate.gateway.adaptive.adapting import Adapting
from pdgate.gateway.adaptive.books import RoleBooks
from pdgate.gateway.adaptive.sides import Sides
from pdgate.gateway.admin.dial import Dial
from pdgate.gateway.admin.status import SharedStatus
from pdgate.gateway.admission.books import AdmissionBooks
from pdgate.gateway.admission.gate import Gate
from pdgate.gateway.config import Settings
from pdgate.gateway.config.sections import Disaggregation
from pdgate.gateway.discovery.adopt import adopter
from pdgate.gateway.discovery.feed import Feed
from pdgate.gateway.discovery.status import Status
from pdgate.gateway.engine_metrics.counters import Counters
from pdgate.gateway.engine_metrics.page import Page
from pdgate.gateway.engine_metrics.reader import Reading
from pdgate.gateway.kv_events.books import KvEventBooks
from pdgate.gateway.kv_events.feed import Feed as EventFeed
from pdgate.gateway.kv_events.feeds import Feeds, Heard, Listened, Where
from pdgate.gateway.kv_events.sequence import Counts
from pdgate.gateway.kv_events.tokenizing import Tokenizing
from pdgate.gateway.kv_events.translation import Translation
from pdgate.gateway.lifecycle.drain import Drain
from pdgate.gateway.lifecycle.reload import Reload
from pdgate.gateway.metrics.books import Books, Together, registry_of
from pdgate.gateway.metrics.health import HealthMetrics
from pdgate.gateway.metrics.histogram import SECONDS
from pdgate.gateway.metrics.kv import KvMetrics
from pdgate.gateway.metrics.passed_over import PassedOverMetrics
from pdgate.gateway.metrics.predictions import PredictionMetrics
from pdgate.gateway.metrics.prefixes import PrefixMetrics
from pdgate.gateway.probe import Prober
from pdgate.gateway.replicas.far_prompts import FarPrompts
from pdgate.gateway.replicas.status import ReplicaStatus
from pdgate.gateway.security.books import KeyBooks
from pdgate.gateway.security.door import Door
from pdgate.gateway.security.engine_access import OPEN
from pdgate.gateway.security.keys import ApiKey
from pdgate.gateway.tracing.books import TraceBooks
from pdgate.gateway.verification.report import Report
from pdgate.gateway.verification.watch import Watch
from pdgate.protocols.call import COMPLETIONS, Call
from pdgate.protocols.errors import BadRequest, Forbidden
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.admission import Limits, Place
from pdgate.scheduling.candidate import Candidate
from pdgate.scheduling.disaggregation import Decision, Taken
from pdgate.scheduling.disaggregation.decision import ALWAYS
from pdgate.scheduling.instances import Instances
from pdgate.scheduling.prefix.index import PrefixIndex
from pdgate.scheduling.roles import Roles
from pdgate.scheduling.surroundings import Targets
from tests.docs.pages import DOCS, code, table
from tests.gateway.replicas.sites import Process, Table, Told
from tests.support.clock import Clock
from tests.support.engine_cores import engine, layout
from tests.support.fake_connector import FakeConnector, Meeting

PAGE = DOCS / "operations" / "metrics.md"
P = Instance("p0", "http://10.0.0.1:8100", Role.PREFILL, "vllm-nixl")
D = Instance("d0", "http://10.0.0.2:8200", Role.DECODE, "vllm-nixl")

pytestmark = pytest.mark.source

Shown = dict[str, tuple[str, frozenset[str]]]


def test_the_page_has_every_metric_of_the_gateway() -> None:
    counted = Together(
        _busy_books(),
        _health(),
        _kv(),
        _status(),
        _report(),
        _redis(),
        _replicas(),
        _keys(),
        _admission(),
        _predictions(),
        PassedOverMetrics({(Role.PREFILL, "slo"): Counter(first_token_in_time=1)}),
        _roles(),
        PrefixMetrics(PrefixIndex()),
        _kv_events(),
        TraceBooks(SimpleNamespace(sent=1, lost=0, dropped=0)),
    )

    assert _on_page("`pdgate_", but_not="`pdgate_engine_") == _exposed(registry_of(counted))


def _kv_events() -> KvEventBooks:
    translation = Translation(PrefixIndex())
    instances = Instances([P])
    feeds = Feeds(Where("ask"), instances, translation, OPEN)
    feed = SimpleNamespace(counts=Counts(), malformed=0, connected=True)
    heard = {0: Heard(cast(EventFeed, feed))}
    feeds.engines[P.id] = Listened(P, heard=heard)
    return KvEventBooks(feeds, translation, Tokenizing(translation, instances, OPEN))


def test_the_page_has_every_metric_of_the_engine() -> None:
    made = engine()
    connector = FakeConnector(made.core, made.memory, Meeting(layout()))
    registry = CollectorRegistry()
    registry.register(EngineMetrics(made.core, connector, "tiny"))

    assert _on_page("`vllm:", "`pdgate_engine_") == _exposed(registry)


def test_the_page_gives_the_range_of_the_buckets() -> None:
    assert f"in seconds: {SECONDS[0]:g} to {SECONDS[-1]:g}." in PAGE.read_text(encoding="utf-8")


def test_the_page_has_every_stage_in_the_order_of_time() -> None:
    text = PAGE.read_text(encoding="utf-8")
    section = text[text.index("## Stages") : text.index("## TPOT")]

    assert re.findall(r"^\| `(\w+)`", section, re.MULTILINE) == list(STAGES)


def _kv() -> KvMetrics:
    ledger, lives = KvLedger(), Lives()
    ledger.strand("p0", inf)
    lives.pinned.add("p0")
    return KvMetrics(ledger, lives, [Candidate(P)])


def _health() -> HealthMetrics:
    instances = Instances([D])
    instances.mark_up(D.id, ["m"])
    instances.mark_down(D.id)
    reload = Reload(Settings())
    reload.again()
    return HealthMetrics(instances, Drain(lambda: 0, grace_seconds=0), reload)


def _redis() -> SharedStatus:
    return SharedStatus(Dial(Disaggregation(), lambda _: None))


def _replicas() -> ReplicaStatus:
    process = Process(Table(Clock()), "g")
    prompts = FarPrompts(PrefixIndex(), process.instances, "g", Told().seen())
    return ReplicaStatus(process.exchange, process.instances, prompts)


def _status() -> Status:
    """Of a directory; its metrics have samples from the start."""
    instances = Instances()
    prober = Prober(instances, interval_seconds=1, timeout_seconds=1)
    return Status(Feed(Memory(), instances, prober, adopter(Settings()), lambda: 0.0))


def _admission() -> AdmissionBooks:
    instances = Instances([Instance("e0", "http://10.0.0.3:8000", Role.PLAIN, "plain")])
    instances.mark_up("e0", ["tiny"])
    gate = Gate(Limits(), instances)
    with gate.turn("tiny", Place()):
        gate.refused["tiny", "full"] += 1
    return AdmissionBooks(gate)


def _roles() -> RoleBooks:
    """Of one engine on each side, one of which was the other's before."""
    instances = Instances([replace(D, id=name, role=Role.BOTH) for name in ("e0", "e1")])
    for name in ("e0", "e1"):
        instances.mark_up(name, ["m"])
    adapting = Adapting(Sides(instances, Targets, lambda: 0.0), Roles(0), 1.0)
    asyncio.run(adapting.round())
    adapting.look()
    adapting.counted["e0", "decode"] += 1
    return RoleBooks(adapting, instances)


def _predictions() -> PredictionMetrics:
    candidate = Candidate(D)
    candidate.predicts.prefill_accuracy.compare(1.0, 1.0)
    return PredictionMetrics([candidate])


def _keys() -> KeyBooks:
    door = Door([ApiKey("team-a", "", frozenset({"m"}))])
    holder = door.holders["team-a"]
    with pytest.raises(Forbidden):
        holder.enter("other")
    return KeyBooks(door)


def _report() -> Report:
    """Of a pair whose decode has recomputed a prompt."""
    instances = Instances([P, D])
    watch = Watch(instances, 5, 2, lambda: 0.0)
    decode = instances.get(D.id)
    assert decode is not None
    for candidate in instances:
        watch.reader.readings[candidate.instance.id] = Reading("", 0.0, Page())
    for counted in (0.0, 9.0):
        for candidate in instances:
            counters = Counters(computed=counted, cached=0, transferred=0, first_tokens=0)
            watch.verifier.sees(candidate, Page(counters))
        decode.handed_over += 1
    return watch.report


def _busy_books() -> Books:
    """Books in which every metric has a sample: a resumed call that then went well."""
    books = Books([Candidate(P), Candidate(D)])
    books.refused(BadRequest("no"))
    record = Record(Call("c", "c-1", COMPLETIONS, {}, model="m", streams=True))
    books.opened(record)
    record.queued_seconds = 0.0
    for record.attempts, outcome in ((1, "engine_failed"), (2, "ok")):
        for role, instance in ((Role.PREFILL, P), (Role.DECODE, D)):
            leg = record.leg(role, instance, lambda *_: None)
            if role is Role.DECODE:
                leg.first_byte = record.clock()
            leg.ended, leg.outcome = record.clock(), outcome
    assert record.gaps is not None
    measured = record.gaps.sink(
        cast(Sink, SimpleNamespace(data=lambda *_: None, ended=lambda *_: None))
    )
    for _ in range(2):
        measured.data(b"data: {'choices': []}\n\n")
    measured.ended(None)
    record.end_of_answer = b'{"usage": {"prompt_tokens": 7, "completion_tokens": 2}}'
    record.decisions[1] = Decision(Taken.SPLIT, ALWAYS)
    record.protocol, record.path, record.handed_over = "vllm-nixl", DISAGGREGATED, True
    record.committed, record.resumed = record.clock(), 1
    record.end("ok", 200)
    books.closed(record)
    return books


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
