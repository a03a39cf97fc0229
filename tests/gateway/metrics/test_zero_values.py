"""Counters begin with 0 where it is known what they will count, and with few series."""

import re
from math import inf

import pytest

from pdgate.forwarders.kv_lease import KvLedger
from pdgate.forwarders.lives import Lives
from pdgate.forwarders.record import DISAGGREGATED, PLAIN, Record
from pdgate.gateway.metrics import zero_values
from pdgate.gateway.metrics.call_stats import CallStats
from pdgate.gateway.wiring import metrics
from pdgate.protocols.errors import BadRequest
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.disaggregation import decision
from pdgate.scheduling.endpoint import Endpoint
from tests.docs.pages import DOCS, code, table
from tests.support.scripted import D0, P0, chat

ALONE = Instance("e0", "http://10.0.2.1:8000", Role.PLAIN, "plain")


def counted(stats: CallStats, name: str) -> dict[tuple[str, ...], float]:
    """Label values in order of label names -> value, of samples of that name."""
    return {
        tuple(sample.labels[label] for label in sorted(sample.labels)): sample.value
        for family in stats.collect()
        for sample in family.samples
        if sample.name == name
    }


def test_results_are_there_before_the_first_call() -> None:
    stats = CallStats([Endpoint(P0), Endpoint(D0)])

    assert counted(stats, "pdgate_kv_handover_total") == {
        (P0.protocol, result): 0
        for result in ("done", "failed", "unknown", "recomputed", "expired")
    }
    assert counted(stats, "pdgate_broken_answers_total") == {
        (P0.protocol, result): 0 for result in ("resumed", "lost")
    }
    legs = counted(stats, "pdgate_retried_legs_total")
    assert {role for _, role in legs} == {"prefill", "decode"}
    assert {"ok", "cancelled", "engine_failed", "kv_expired"} <= {outcome for outcome, _ in legs}
    assert not any(legs.values())


def test_each_prefill_engine_has_stranded_nothing_yet() -> None:
    ledger = KvLedger()
    fleet = [Endpoint(P0), Endpoint(D0)]

    def strandings() -> dict[str, float]:
        (family,) = (
            one for one in metrics.kv(ledger, Lives(), fleet) if one.name == "pdgate_kv_strandings"
        )
        return {sample.labels["instance"]: sample.value for sample in family.samples}

    assert strandings() == {P0.id: 0}
    ledger.strand(P0.id, inf)
    assert strandings() == {P0.id: 1}


def test_what_a_fleet_cannot_do_is_not_told() -> None:
    stats = CallStats([Endpoint(ALONE)])

    assert not counted(stats, "pdgate_kv_handover_total")
    assert not counted(stats, "pdgate_disaggregation_decisions_total")
    assert {role for _, role in counted(stats, "pdgate_retried_legs_total")} == {"plain"}


def test_what_happens_is_added_to_the_zeros() -> None:
    stats = CallStats([Endpoint(P0), Endpoint(D0)])
    before = counted(stats, "pdgate_requests_refused_total")

    stats.refused(BadRequest("no"))

    assert counted(stats, "pdgate_requests_refused_total") == {**before, ("400",): 1}


def test_the_first_failure_of_a_model_is_seen_once_it_has_been_called() -> None:
    stats = CallStats([Endpoint(P0), Endpoint(D0)])
    for model, path, outcome in (("m", DISAGGREGATED, "ok"), ("nope", "", "model_not_found")):
        record = Record(chat(model=model))
        stats.opened(record)
        record.path, record.protocol = path, P0.protocol if path else ""
        record.end(outcome, 200)
        stats.closed(record)

    found = counted(stats, "pdgate_calls_total")

    assert {key: n for key, n in found.items() if n} == {
        ("m", "ok", DISAGGREGATED, P0.protocol): 1,
        ("", "model_not_found", "", ""): 1,
    }
    assert {key[1] for key in found if key[2] == DISAGGREGATED} == set(zero_values.OUTCOMES)
    assert not any(path == PLAIN for _, _, path, _ in found), "nobody took that one"


@pytest.mark.source
def test_decisions_are_those_that_are_documented() -> None:
    page = DOCS / "operations" / "conditional-disaggregation.md"
    there = {
        (taken, reason)
        for row in table(page)
        for reason in code(row[0])
        for taken in (("split", "local") if row[1] == "either" else (row[1],))
        if reason in vars(decision).values()
    }

    assert there == set(zero_values.DECISIONS)


@pytest.mark.source
def test_reasons_of_ejections_are_those_that_are_documented() -> None:
    page = (DOCS / "operations" / "metrics.md").read_text(encoding="utf-8")
    row = re.search(r"^\| `why` \| (.*) \|$", page, re.MULTILINE)

    assert row is not None
    assert set(re.findall("`([^`]+)`", row[1])) == set(zero_values.EJECTIONS)
