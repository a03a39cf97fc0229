"""Engines' answers, parsed; whatever is not as expected is as if it was not there.

Sources: vLLM 0.32.0, v1/metrics/loggers.py, .../kv_connector/v1/nixl/stats.py,
entrypoints/serve/.../server_info; SGLang, entrypoints/http_server.py, get_server_info();
ours, engine/metrics.py.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from pdgate.operations.doctor.seen import Card, SeenBootstrap, SeenConnector, SeenEvents
from pdgate.protocols.call import value
from pdgate.protocols.dialects import lmdeploy, mooncake
from pdgate.protocols.errors import BadRequest
from pdgate.protocols.instance import Role

COUNTERS: Final[Mapping[str, str]] = {
    "vllm:nixl_xfer_time_seconds_count": "loads",
    "vllm:pdgate_transfers_total": "loads",
    "pdgate_engine_kv_transfers_total": "loads",
    "vllm:nixl_num_failed_transfers_total": "loads_failed",
    "vllm:pdgate_failed_total": "loads_failed",
    "pdgate_engine_kv_transfers_failed_total": "loads_failed",
    "vllm:nixl_num_kv_expired_reqs_total": "expired",
    "vllm:pdgate_expired_total": "expired",
    "pdgate_engine_kv_leases_expired_total": "expired",
    "vllm:nixl_num_notifications_after_expiry_total": "read_late",
    "vllm:request_success_total": "calls",
}
PEERS_REFUSED: Final = (
    "pdgate_engine_kv_peers_refused_total",
    "vllm:pdgate_peers_refused_total",
)
"""Those that only hung up, as port scanners do, are no trouble."""
OF_NIXL: Final = "vllm:nixl_"
BY_SOURCE: Final = "vllm:prompt_tokens_by_source_total"
CACHE_CONFIG: Final = "vllm:cache_config_info"
STARTED: Final = "process_start_time_seconds"

_WORDS: Final = {"True": True, "False": False}
_CONNECTOR_ROLES: Final = {
    "kv_producer": Role.PREFILL,
    "kv_consumer": Role.DECODE,
    "kv_both": Role.BOTH,
}
_WILDCARDS: Final = ("*", "0.0.0.0", "[::]", "")


@dataclass(slots=True)
class SeenMetrics:
    """The part of /metrics that the doctor wants.

    Attributes:
        taken_tokens: Of prompts, that came from other engines; None if it does not count these.
        has_nixl: It has counters of vLLM's NixlConnector, which are there from its start.
        any: There is a page.
        ranks: Data-parallel, that have a cache of their own.
    """

    block_tokens: int | None = None
    prefix_caching: bool | None = None
    kv_dtype: str = ""
    started: float | None = None
    taken_tokens: int | None = None
    counters: dict[str, float] = field(default_factory=dict)
    has_nixl: bool = False
    any: bool = False
    ranks: set[str] = field(default_factory=set)


def page(text: str) -> SeenMetrics:
    """Raises ValueError for what is no page of metrics."""
    found = SeenMetrics()
    for family in text_string_to_metric_families(text):
        found.any = True
        found.has_nixl = found.has_nixl or family.name.startswith(OF_NIXL)
        for sample in family.samples:
            labels = sample.labels
            if sample.name in COUNTERS:
                name = COUNTERS[sample.name]
                found.counters[name] = found.counters.get(name, 0.0) + sample.value
            elif sample.name in PEERS_REFUSED and labels.get("why") != "broken":
                refused = found.counters.get("peers_refused", 0.0)
                found.counters["peers_refused"] = refused + sample.value
            elif sample.name == BY_SOURCE:
                taken = sample.value if labels.get("source") == "external_kv_transfer" else 0
                found.taken_tokens = (found.taken_tokens or 0) + int(taken)
            elif sample.name == CACHE_CONFIG:
                found.ranks.add(labels.get("engine", ""))
                size = labels.get("block_size", "")
                found.block_tokens = int(size) if size.isdecimal() else None
                found.prefix_caching = _WORDS.get(labels.get("enable_prefix_caching", ""))
                found.kv_dtype = labels.get("cache_dtype", "")
            elif sample.name == STARTED:
                found.started = sample.value
    return found


def cards(body: Any) -> tuple[dict[str, Card], str, float | None]:
    """Models by name, their owner, and when the first of them was made."""
    listed = [one for one in _list(body, "data") if isinstance(one.get("id"), str)]
    found = {}
    for one in listed:
        root, most = one.get("root"), one.get("max_model_len")
        found[one["id"]] = Card(
            root if isinstance(root, str) else "", most if isinstance(most, int) else None
        )
    owner = listed[0].get("owned_by") if listed else None
    created = listed[0].get("created") if listed else None
    return (
        found,
        owner if isinstance(owner, str) else "",
        float(created) if isinstance(created, int | float) else None,
    )


def vllm_connector(body: Any) -> SeenConnector:
    """Connector in /server_info?config_format=json, which only vLLM's development mode has."""
    given = _dict(_dict(body, "vllm_config"), "kv_transfer_config")
    lease = _dict(given, "kv_connector_extra_config").get("kv_lease_duration")
    return SeenConnector(
        _text(given, "kv_connector"),
        _CONNECTOR_ROLES.get(_text(given, "kv_role")),
        _text(given, "engine_id"),
        float(lease) if isinstance(lease, int | float) else None,
        _text(_dict(_dict(body, "vllm_config"), "ec_transfer_config"), "ec_role"),
    )


@dataclass(frozen=True, slots=True)
class SglangInfo:
    version: str
    role: Role | None
    block_tokens: int | None
    kv_dtype: str
    prefix_caching: bool | None


def lmdeploy_info(body: bytes) -> dict[str, int]:
    """Numbers in /distserve/engine_info, which is a text that is JSON; empty for what is none."""
    try:
        found = lmdeploy.unquoted(body)
        told = {"block_tokens": value(found, "block_size"), "tp": value(found, "tp_size")}
    except BadRequest:
        return {}
    return {name: size for name, size in told.items() if type(size) is int}


def sglang_info(body: Any) -> SglangInfo:
    """Facts in SGLang's /server_info: its arguments, and its version."""
    modes = {"prefill": Role.PREFILL, "decode": Role.DECODE}
    size = body.get("page_size") if isinstance(body, dict) else None
    off = body.get("disable_radix_cache") if isinstance(body, dict) else None
    return SglangInfo(
        _text(body, "version"),
        modes.get(_text(body, "disaggregation_mode")),
        size if isinstance(size, int) else None,
        _text(body, "kv_cache_dtype"),
        None if not isinstance(off, bool) else not off,
    )


def bootstrap(body: Any) -> SeenBootstrap:
    """Facts in the answer to GET <bootstrap>/query."""
    try:
        ids = tuple(engine for _, engine in mooncake.engine_ids(body))
        addresses = [
            urlsplit(address)
            for entry in body.values()
            for by_stage in entry.get("worker_addr", {}).values()
            for address in by_stage.values()
        ]
        workers = tuple((one.hostname or "", one.port or 0) for one in addresses)
    except (ValueError, AttributeError, TypeError) as error:
        return SeenBootstrap(f"it is no bootstrap server: {error}")
    if not ids:
        return SeenBootstrap("it knows no engine yet")
    return SeenBootstrap("", ids, workers)


def events(body: Any, host: str) -> SeenEvents | None:
    """The first rank's source in /kv_event_sources; a wildcard becomes the engine's host."""
    first = next(iter(body.values()), None) if isinstance(body, dict) else None
    endpoint = _text(first, "endpoint")
    if not isinstance(first, dict) or not endpoint:
        return None
    replay = _text(first, "replay_endpoint")
    return SeenEvents(
        _dialled(endpoint, host), _dialled(replay, host), _text(first, "topic"), first
    )


def tokens(body: Any) -> tuple[int, ...] | None:
    """Token ids in the answer to POST /tokenize."""
    found = body.get("tokens") if isinstance(body, dict) else None
    if not isinstance(found, list) or not all(isinstance(one, int) for one in found):
        return None
    return tuple(found)


def skew(date: str | None, between: tuple[float, float]) -> float | None:
    """Seconds that a clock is ahead, by its Date header, which we got between two of our times."""
    if date is None:
        return None
    try:
        said = parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return None
    before, after = between
    if said > after:
        return said - after
    # It is cut off to whole seconds.
    return min(0.0, said + 1 - before)


def _dialled(endpoint: str, host: str) -> str:
    scheme, _, address = endpoint.partition("://")
    named, _, port = address.rpartition(":")
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{port}" if named in _WILDCARDS and port else endpoint


def _text(body: Any, name: str) -> str:
    found = body.get(name) if isinstance(body, dict) else None
    return found if isinstance(found, str) else ""


def _dict(body: Any, name: str) -> dict[str, Any]:
    found = body.get(name) if isinstance(body, dict) else None
    return found if isinstance(found, dict) else {}


def _list(body: Any, name: str) -> Iterable[dict[str, Any]]:
    found = body.get(name) if isinstance(body, dict) else None
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
