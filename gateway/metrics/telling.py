"""The books as families of Prometheus metrics. Made when they are asked for.

Counters are there with 0 before anything has happened, as far as their labels are known (known.py).
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Final, TypeVar

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from pdgate.forwarders.record import STAGES
from pdgate.gateway.metrics import known
from pdgate.gateway.metrics.grouped import by_model
from pdgate.gateway.metrics.histogram import family
from pdgate.gateway.metrics.tally import Tally
from pdgate.scheduling.neighbours import calls_of_this_gateway

if TYPE_CHECKING:
    from pdgate.gateway.metrics.books import Books

Key = TypeVar("Key", bound=Hashable)

BY: Final = ("protocol", "model")

_SECONDS: Final = {
    "call": "From the call's arrival to the end of its answer.",
    "first_byte": "From the call's arrival to the first byte of its answer.",
    "ttft": "From a stream's arrival to its first event at the client.",
    "tpot": "For one token of a stream, after the first.",
}


def families(books: "Books") -> Iterator[Metric]:
    protocols = known.protocols(books.candidates)
    yield GaugeMetricFamily(
        "pdgate_calls_in_flight", "Calls that are being served.", books.in_flight
    )
    found = by_model(books.tallies)
    yield from _calls(found, protocols)
    yield _counter(
        "pdgate_api_calls",
        "Calls that ended, by the route that they came by.",
        ("api", "outcome"),
        _at_least(known.ROUTES, _routes(books)).items(),
    )
    yield _counter(
        "pdgate_requests_refused",
        "Requests that were wrong before any engine was asked.",
        ("status",),
        (((status,), count) for status, count in _at_least(known.REFUSALS, books.refusals).items()),
    )
    yield _counter(
        "pdgate_retried_legs",
        "Legs whose attempt failed and was followed by another.",
        ("role", "outcome"),
        _at_least(product(known.leg_roles(books.candidates), known.LEGS), books.retries).items(),
    )
    yield _counter(
        "pdgate_disaggregation_decisions",
        "Attempts that could have been split, by what was decided and why.",
        ("decision", "reason"),
        _at_least(known.DECISIONS if protocols else (), books.decisions).items(),
    )
    yield _counter(
        "pdgate_tokens",
        "Tokens of prompts and answers, as far as engines say it.",
        ("model", "kind"),
        _tokens(found).items(),
    )
    tallies = found.items()
    for what, text in _SECONDS.items():
        seconds = ((key, tally.seconds[what]) for key, tally in tallies)
        yield family(f"pdgate_{what}_seconds", text, BY, seconds)
    yield family(
        "pdgate_itl_seconds",
        "Between two events of a stream, of some streams.",
        BY,
        ((key, tally.itl) for key, tally in tallies),
    )
    yield family(
        "pdgate_stage_seconds",
        "How long each stage of a call took that came to a good end.",
        (*BY, "stage"),
        (((*key, stage), tally.seconds[stage]) for stage in STAGES for key, tally in tallies),
    )
    yield family(
        "pdgate_instance_stage_seconds",
        "How long legs to an instance took.",
        ("instance", "role", "stage"),
        (
            ((name, at.instance.role.value, stage), histogram)
            for name, at in books.instances.items()
            for stage, histogram in at.seconds.items()
        ),
    )
    yield from _instances(books)


def _calls(found: Mapping[tuple[str, str], Tally], protocols: Sequence[str]) -> Iterator[Metric]:
    tallies = found.items()
    yield _counter(
        "pdgate_calls",
        "Calls that ended, by protocol, model, path and outcome.",
        (*BY, "path", "outcome"),
        (
            ((*key, path, outcome), count)
            for key, tally in tallies
            for (path, outcome), count in _at_least(_outcomes(tally), tally.outcomes).items()
        ),
    )
    handovers: Counter[tuple[str, str]] = Counter()
    breaks: Counter[tuple[str, str]] = Counter()
    for (protocol, _), tally in tallies:
        for result, count in tally.handovers.items():
            handovers[protocol, result] += count
        for result, count in tally.breaks.items():
            breaks[protocol, result] += count
    yield _counter(
        "pdgate_kv_handover",
        "How split calls fared: whether decode answered with prefill's KV.",
        ("protocol", "result"),
        _at_least(product(protocols, known.HANDOVERS), handovers).items(),
    )
    yield _counter(
        "pdgate_broken_answers",
        "Answers that broke off after their first byte, by whether another engine went on.",
        ("protocol", "result"),
        _at_least(product(protocols, known.BREAKS), breaks).items(),
    )


def _outcomes(tally: Tally) -> Iterable[tuple[str, str]]:
    """(path, outcome) that are told for each path that calls took; none where no engine was found."""
    return product({path: None for path, _ in tally.outcomes if path}, known.OUTCOMES)


def _routes(books: "Books") -> Counter[tuple[str, str]]:
    """(route, outcome) -> calls."""
    counted: Counter[tuple[str, str]] = Counter()
    for (_, _, route), tally in books.tallies.items():
        for (_, outcome), calls in tally.outcomes.items():
            counted[route, outcome] += calls
    return counted


def _tokens(found: Mapping[tuple[str, str], Tally]) -> Counter[tuple[str, str]]:
    """(model, kind) -> tokens."""
    counted: Counter[tuple[str, str]] = Counter()
    for (_, model), tally in found.items():
        for kind, tokens in tally.tokens.items():
            counted[model, kind] += tokens
    return counted


def _instances(books: "Books") -> Iterator[Metric]:
    labels = ("instance", "role")
    up = GaugeMetricFamily("pdgate_instance_up", "1 if calls may go there.", labels=labels)
    calls = GaugeMetricFamily(
        "pdgate_instance_calls", "Legs in flight at an instance.", labels=labels
    )
    for candidate in books.candidates:
        key = (candidate.instance.id, candidate.instance.role.value)
        up.add_metric(key, float(candidate.fit))
        calls.add_metric(key, float(calls_of_this_gateway(candidate)))
    yield up
    yield calls


def _at_least(keys: Iterable[Key], counts: Mapping[Key, int]) -> dict[Key, int]:
    """What was counted, and 0 for those of `keys` that were not."""
    return {**dict.fromkeys(keys, 0), **counts}


def _counter(
    name: str, text: str, labels: Sequence[str], counts: Iterable[tuple[Sequence[str], int]]
) -> CounterMetricFamily:
    made = CounterMetricFamily(name, text, labels=labels)
    for key, count in counts:
        made.add_metric(key, count)
    return made
