"""Findings about an engine by itself."""

from collections.abc import Iterator, Mapping
from typing import Final

from pdgate import __version__
from pdgate.operations.doctor.checks import (
    ANSWERS_NOTHING,
    ASKS_FOR_KEY,
    CLOCK_SKEW,
    CLOSES_CONNECTIONS,
    KV_PEERS_REFUSED,
    LEASES_EXPIRED,
    LOADS_FAILED,
    NO_CONNECTOR,
    NO_MODELS,
    PREFIX_CACHING_OFF,
    RANKS_UNNAMED,
    READ_LATE,
    SHOWS_ALL,
    UNHEALTHY,
    UNREACHABLE,
    VERSION_UNTESTED,
    DoctorCheck,
    Finding,
)
from pdgate.operations.doctor.seen import Examined, SeenEngine
from pdgate.protocols.instance import Instance, Role

SKEW_SECONDS = 3.0
"""A Date header has whole seconds, and servers write it once a second."""

FAILED_SHARE = 0.05
"""Of loads; single ones fail now and then."""

EXPIRED_SHARE = 0.01
"""Of calls; some clients leave at that moment."""

TESTED: Final[Mapping[str, Mapping[str, str]]] = {
    "vllm": {"0.32": "the CPU build, every test of `make e2e-vllm`"},
    "pdgate": {".".join(__version__.split(".")[:2]): "every test"},
}
"""Engines that pdgate was tested with, as in docs/operations/doctor.md: kind -> major.minor -> how.

SGLang and Neuron were only stood in for."""


def findings(examined: Examined) -> Iterator[Finding]:
    for seen in examined.fleet:
        for check, found in _of(seen):
            yield Finding(check, (seen.id,), found)
    for engine, trouble in examined.probes.silent.items():
        yield Finding(ANSWERS_NOTHING, (engine,), trouble)


def _of(seen: SeenEngine) -> Iterator[tuple[DoctorCheck, str]]:
    trouble = _unfit(seen)
    if trouble is not None:
        yield trouble
        return
    if seen.kind == "vllm" and seen.instance.protocol == "vllm-nixl" and seen.has_nixl is False:
        yield NO_CONNECTOR, "none of vllm:nixl_*"
    if seen.ranks > 1 and _asked_by_address(seen.instance) and seen.instance.dp_rank is None:
        yield RANKS_UNNAMED, f"its metrics show {seen.ranks}"
    if untested := why_untested(seen.kind, seen.version):
        yield VERSION_UNTESTED, untested
    if seen.closes:
        yield CLOSES_CONNECTIONS, "its answer had Connection: close"
    skew = seen.skew_seconds
    if skew is not None and abs(skew) > SKEW_SECONDS:
        yield CLOCK_SKEW, f"{abs(skew):.0f} s {'ahead' if skew > 0 else 'behind'}"
    if seen.prefix_caching is False and seen.instance.role is not Role.DECODE:
        yield PREFIX_CACHING_OFF, "its cache configuration says so"
    if seen.shows_all:
        yield SHOWS_ALL, "GET /server_info answers with its configuration"
    yield from _counted(seen)


def _asked_by_address(instance: Instance) -> bool:
    """Decode knows no more of this prefill engine than where the gateway says that its KV is."""
    return instance.protocol == "vllm-kvt" and instance.role.serves(Role.PREFILL)


def _unfit(seen: SeenEngine) -> tuple[DoctorCheck, str] | None:
    url = seen.instance.url
    if seen.trouble:
        return UNREACHABLE, f"{url}: {seen.trouble}"
    if seen.models_status in (401, 403):
        return ASKS_FOR_KEY, f"{url}/v1/models answered {seen.models_status}"
    if seen.health != 200:
        return UNHEALTHY, f"{url}/health answered {seen.health}"
    if seen.models_status != 200:
        return NO_MODELS, f"{url}/v1/models answered {seen.models_status}"
    wanted = seen.instance.model
    if not seen.cards or (wanted and wanted not in seen.cards):
        named = ", ".join(sorted(seen.cards)) or "none"
        return NO_MODELS, f"it names {named}" + (f", and not {wanted}" if wanted else "")
    return None


def _counted(seen: SeenEngine) -> Iterator[tuple[DoctorCheck, str]]:
    count = seen.counters.get
    failed, loads = count("loads_failed", 0.0), count("loads", 0.0)
    if failed and failed >= FAILED_SHARE * (failed + loads):
        yield LOADS_FAILED, f"{failed:.0f} of {failed + loads:.0f} loads failed"
    if refused := count("peers_refused", 0.0):
        yield KV_PEERS_REFUSED, f"{refused:.0f} since its start"
    expired, calls = count("expired", 0.0), count("calls", 0.0)
    if expired and expired >= EXPIRED_SHARE * calls:
        yield LEASES_EXPIRED, f"{expired:.0f} of {calls:.0f} calls"
    if late := count("read_late", 0.0):
        yield READ_LATE, f"{late:.0f} times since its start"


def why_untested(kind: str, version: str) -> str:
    """Empty if it was tested, or does not say what it is."""
    if not kind or not version:
        return ""
    tested = TESTED.get(kind)
    if tested is None:
        return f"{kind} {version}: pdgate was not tested with a running {kind}"
    # vLLM's builds end with what they were built for: 0.32.0+cpu.
    if ".".join(version.partition("+")[0].split(".")[:2]) in tested:
        return ""
    return f"{kind} {version}: tested with {', '.join(tested)}"
