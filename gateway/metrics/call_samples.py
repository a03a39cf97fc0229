"""Call stats as samples of the declared families. Made when they are asked for."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING, Final

from pdgate.forwarders.record import STAGES
from pdgate.gateway.metrics import families, zero_values
from pdgate.gateway.metrics.aggregates import Aggregate, by_model
from pdgate.gateway.metrics.family import Samples
from pdgate.scheduling.neighbours import calls_of_this_gateway

if TYPE_CHECKING:
    from pdgate.gateway.metrics.call_stats import CallStats

_SECONDS: Final = {
    "call": families.CALL_SECONDS,
    "first_byte": families.FIRST_BYTE_SECONDS,
    "ttft": families.TTFT_SECONDS,
    "tpot": families.TPOT_SECONDS,
}


def samples(stats: "CallStats") -> Iterator[Samples]:
    fleet = stats.endpoints
    yield families.CALLS_IN_FLIGHT.sample(stats.in_flight)
    found = by_model(stats.aggregates)
    yield families.CALLS.samples(_calls(found))
    by_protocol = [(protocol, aggregate) for (protocol, _), aggregate in found.items()]
    handovers = _sum((protocol, of.handovers) for protocol, of in by_protocol)
    yield families.KV_HANDOVER.samples(handovers.items(), fleet)
    breaks = _sum((protocol, of.breaks) for protocol, of in by_protocol)
    yield families.BROKEN_ANSWERS.samples(breaks.items(), fleet)
    yield families.API_CALLS.samples(_routes(stats).items(), fleet)
    for family, counts in list(stats.counts.items()):
        yield family.samples(counts.items(), fleet)
    tokens = _sum((model, of.tokens) for (_, model), of in found.items())
    yield families.TOKENS.samples(tokens.items())
    for what, histograms in _SECONDS.items():
        yield histograms.samples((key, of.seconds[what]) for key, of in found.items())
    yield families.ITL_SECONDS.samples((key, of.itl) for key, of in found.items())
    yield families.STAGE_SECONDS.samples(
        ((*key, stage), of.seconds[stage]) for stage in STAGES for key, of in found.items()
    )
    yield families.INSTANCE_STAGE_SECONDS.samples(
        ((name, at.instance.role.value, stage), histogram)
        for name, at in stats.instances.items()
        for stage, histogram in at.seconds.items()
    )
    at_instances = [((one.instance.id, one.instance.role.value), one) for one in fleet]
    yield families.INSTANCE_UP.samples((key, float(one.fit)) for key, one in at_instances)
    yield families.INSTANCE_CALLS.samples(
        (key, float(calls_of_this_gateway(one))) for key, one in at_instances
    )


def _calls(
    found: Mapping[tuple[str, str], Aggregate],
) -> Iterator[tuple[tuple[str, str, str, str], int]]:
    """With zero values for each path that calls took; none where no engine was found."""
    for key, aggregate in found.items():
        paths = {path: None for path, _ in aggregate.outcomes if path}
        zeros = dict.fromkeys(product(paths, zero_values.OUTCOMES), 0)
        for (path, outcome), count in {**zeros, **aggregate.outcomes}.items():
            yield (*key, path, outcome), count


def _routes(stats: "CallStats") -> Counter[tuple[str, str]]:
    """(route, outcome) -> calls."""
    counted: Counter[tuple[str, str]] = Counter()
    for (_, _, route), aggregate in stats.aggregates.items():
        for (_, outcome), calls in aggregate.outcomes.items():
            counted[route, outcome] += calls
    return counted


def _sum(several: Iterable[tuple[str, Mapping[str, int]]]) -> Counter[tuple[str, str]]:
    """(label, name) -> the sum of the counts under that name."""
    counted: Counter[tuple[str, str]] = Counter()
    for label, counts in several:
        for name, count in counts.items():
            counted[label, name] += count
    return counted
