"""The page on metrics names what /metrics shows, no more and no less."""

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pdgate.forwarders.record import DISAGGREGATED, Record
from pdgate.gateway.books import SECONDS, Books, registry_of
from pdgate.protocols.call import COMPLETIONS, Call
from pdgate.protocols.errors import BadRequest
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.candidate import Candidate
from tests.docs.pages import DOCS, code, table

PAGE = DOCS / "operations" / "metrics.md"
P = Instance("p0", "http://10.0.0.1:8100", Role.PREFILL, "vllm-nixl")
D = Instance("d0", "http://10.0.0.2:8200", Role.DECODE, "vllm-nixl")

pytestmark = pytest.mark.source

Shown = dict[str, tuple[str, frozenset[str]]]


def test_the_page_has_every_metric_with_its_type_and_labels() -> None:
    on_page = {
        code(row[0])[0]: (row[1], frozenset(code(row[2])))
        for row in table(PAGE)
        if row[0].startswith("`pdgate_")
    }

    assert on_page == _exposed(_busy_books())


def test_the_page_gives_the_range_of_the_buckets() -> None:
    assert f"in seconds: {SECONDS[0]:g} to {SECONDS[-1]:g}." in PAGE.read_text(encoding="utf-8")


def _busy_books() -> Books:
    """Books in which every metric has a sample: a retried call that then went well."""
    books = Books([Candidate(P), Candidate(D)])
    books.refused(BadRequest("no"))
    record = Record(Call("c", "c-1", COMPLETIONS, {}))
    books.opened(record)
    for record.attempts, outcome in ((1, "engine_failed"), (2, "ok")):
        for role, instance in ((Role.PREFILL, P), (Role.DECODE, D)):
            leg = record.leg(role, instance)
            leg.ended, leg.outcome = record.clock(), outcome
    record.protocol, record.path, record.handed_over = "vllm-nixl", DISAGGREGATED, True
    record.committed = record.clock()
    record.end("ok", 200)
    books.closed(record)
    return books


def _exposed(books: Books) -> Shown:
    """Name -> type and labels, as Prometheus reads them."""
    shown: Shown = {}
    text = generate_latest(registry_of(books)).decode()
    for family in text_string_to_metric_families(text):
        assert family.samples, f"{family.name} has no sample, so its labels are not known"
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        name = f"{family.name}_total" if family.type == "counter" else family.name
        shown[name] = (family.type, frozenset(labels))
    return shown
