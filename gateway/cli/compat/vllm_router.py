"""vllm-router's flags (0.1.17, `vllm-router --help`).

Each is one of four: taken over (here, in code), NEEDLESS as the same is so without it, OTHERWISE as
it is done in another way that has to be chosen, or REFUSED as going on without it would be wrong.
"""

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from pdgate.gateway.cli.compat.translation import Flags, FlagTranslation, NotTaken
from pdgate.scheduling.health.breaker import WINDOW

PORT: Final = 30000
"""Where it listens by default."""

PROTOCOLS: Final = {"nixl": "vllm-nixl", "mooncake": "vllm-mooncake"}

POLICIES: Final = {
    "random": "random_two",
    "round_robin": "round_robin",
    "power_of_two": "random_two",
    "cache_aware": "prefix_then_load",
    "kv_aware": "prefix_then_load",
    "consistent_hash": "sticky_session",
    "sticky_least_loaded": "sticky_session",
}

SAME: Final = {
    "--host": "--host",
    "--decode": "--decode",
    "--max-payload-size": "--max-body-bytes",
    "--request-timeout-secs": "--total-timeout",
    "--retry-max-retries": "--max-attempts",
    "--health-check-timeout-secs": "--health-timeout",
    "--health-check-interval-secs": "--health-interval",
    "--queue-size": "--max-waiting",
    "--queue-timeout-secs": "--max-wait",
}
"""Theirs -> ours, with the same value."""

NEEDLESS: Final = {
    "--vllm-pd-disaggregation": "calls are split wherever there are prefill and decode engines",
    "--mini-lb": "one implementation serves every size",
    "--enable-igw": "engines of several models may stand side by side",
    "--worker-startup-timeout-secs": "engines may start before or after the gateway",
    "--worker-startup-check-interval": "engines may start before or after the gateway",
    "--retry-initial-backoff-ms": "another engine is asked at once",
    "--retry-max-backoff-ms": "another engine is asked at once",
    "--retry-backoff-multiplier": "another engine is asked at once",
    "--retry-jitter-factor": "another engine is asked at once",
    "--cb-success-threshold": "one good call, and then a slow start",
    "--cb-timeout-duration-secs": "an ejected engine is back after a good health check; --health-retry is the time between two",
    "--cb-window-duration-secs": "the last 20 calls count",
    "--health-failure-threshold": "one health check that fails is enough, as calls find other engines",
    "--health-success-threshold": "one good check, and then a slow start (--slow-start)",
    "--eviction-interval-secs": "the prefix index holds its limit all the time",
    "--kv-event-block-size": "engines say it with each event",
    "--kv-event-model": "engines say it",
    "--request-id-headers": "x-request-id is read, sent to engines, and returned",
}

OTHERWISE: Final = {
    "--cache-threshold": "prefix_then_load weighs what is cached against load",
    "--balance-abs-threshold": "prefix_then_load weighs what is cached against load",
    "--balance-rel-threshold": "prefix_then_load weighs what is cached against load",
    "--max-tree-size": "--prefix-index-bytes bounds the memory of the prefix index",
    "--router-temperature": "policies draw among equals only",
    "--kv-penalty-host": "--kv-host-price says what a token in the host's memory costs",
    "--kv-penalty-external": "--kv-disk-price says what a token costs on disk or further away",
    "--kv-penalty-disk": "--kv-disk-price says what a token costs on disk or further away",
    "--kv-aware-session-affinity-ttl-secs": "the policy sticky_session keeps sessions together",
    "--kv-event-source": "--kv-events tcp://{host}:PORT listens to all engines",
    "--kv-event-replay-source": "--kv-events-replay tcp://{host}:PORT asks all engines",
    "--pd-kv-events": "--kv-events tcp://{host}:PORT listens to all engines",
    "--enable-program-scheduling": "the policy sticky_session keeps the calls of a session together",
    "--program-scheduling-config-json": "the policy sticky_session keeps sessions together",
    "--max-concurrent-requests": "limits are an engine's: --prefill-concurrency, --decode-concurrency",
    "--rate-limit-tokens-per-second": "limits of rate are a caller's: calls_per_minute of an API key",
    "--prometheus-port": "/metrics is at the port of calls, or at --admin-listen alone",
    "--prometheus-host": "/metrics is at the port of calls, or at --admin-listen alone",
    "--log-dir": "logs go to stderr",
}

REFUSED: Final = {
    "--api-key": "a key on a command line is for all to see: put it into a file, --engine-key-file FILE",
    "--selector": "label the Services of the engines with pdgate.dev/role, and use --directory kubernetes",
    "--prefill-selector": "label the Services of prefill engines with pdgate.dev/role=prefill",
    "--decode-selector": "label the Services of decode engines with pdgate.dev/role=decode",
    "--service-discovery-port": "the Services of engines name their port http",
    "--vllm-discovery-address": "engines are found in a directory: --directory etcd, redis, kubernetes, ...",
    "--wasm-middleware": "there is no middleware; what it checked would go unchecked",
    "--wasm-middleware-sha256": "there is no middleware; what it checked would go unchecked",
    "--wasm-middleware-route": "there is no middleware; what it checked would go unchecked",
}  # fmt: skip

_SWITCHES = (
    "--vllm-pd-disaggregation", "--mini-lb", "--enable-igw", "--enable-program-scheduling",
    "--service-discovery", "--disable-retries", "--disable-circuit-breaker",
)  # fmt: skip
_LISTS = ("--worker-urls", "--request-id-headers", "--cors-allowed-origins")
_REPEATED = ("--decode", "--kv-event-source", "--kv-event-replay-source", "--pd-kv-events",
             "--wasm-middleware-route")  # fmt: skip
_SELECTORS = ("--selector", "--prefill-selector", "--decode-selector")
_CODED = (
    "--port", "--policy", "--prefill-policy", "--decode-policy", "--kv-connector", "--log-level",
    "--intra-node-data-parallel-size", "--cb-failure-threshold", "--health-check-endpoint",
    "--service-discovery-namespace",
)  # fmt: skip


def flags() -> Flags:
    found = Flags("vllm-router")
    for name in _SWITCHES:
        found.add_argument(name, action="store_true")
    for name in _LISTS:
        found.add_argument(name, nargs="*")
    for name in _REPEATED:
        found.add_argument(name, action="append")
    for name in _SELECTORS:
        found.add_argument(name, nargs="+")
    found.add_argument("--prefill", nargs="+", action="append")
    known = {*_SWITCHES, *_LISTS, *_REPEATED, *_SELECTORS}
    for name in sorted({*SAME, *NEEDLESS, *OTHERWISE, *REFUSED, *_CODED} - known):
        found.add_argument(name)
    return found


def translated(args: Sequence[str]) -> FlagTranslation:
    """Raises NotTaken."""
    said, rest = flags().read(args)
    for name in said:
        if name in REFUSED:
            raise NotTaken(f"{name} cannot be taken over: {REFUSED[name]}")
    found = FlagTranslation()
    _engines(said, found)
    _policies(said, found)
    _limits(said, found)
    for name, ours in SAME.items():
        if name in said and name != "--decode":
            found.flag(ours, said[name])
    found.flag("--port", said.get("--port", PORT))
    if origins := said.get("--cors-allowed-origins"):
        found.flag("--cors-origins", ",".join(origins))
    if "--log-level" in said:
        found.flag(
            "--log-level", {"critical": "error"}.get(said["--log-level"], said["--log-level"])
        )
    for name, why in (*NEEDLESS.items(), *OTHERWISE.items()):
        if name in said:
            found.note(name, why)
    found.ours += rest
    return found


def _engines(said: dict[str, Any], found: FlagTranslation) -> None:
    connector = said.get("--kv-connector", "nixl")
    if connector not in PROTOCOLS:
        raise NotTaken(f"--kv-connector {connector} cannot be taken over: no protocol speaks it")
    found.flag("--pdd-protocol", PROTOCOLS[connector])
    ranks = _number(said, "--intra-node-data-parallel-size", 1)
    for url, *port in said.get("--prefill", ()):
        kv = _bootstrap(url, port) if connector == "mooncake" else ""
        _engine(found, "prefill", url, kv, ranks)
    for url in said.get("--decode", ()):
        _engine(found, "decode", url, "", ranks)
    for url in said.get("--worker-urls", ()):
        _engine(found, "plain", url, "", ranks)
    if "--service-discovery" in said:
        found.flag("--directory", "kubernetes")
        found.note("--service-discovery", "engines are found by the labels of their Services")
    if namespace := said.get("--service-discovery-namespace"):
        found.flag("--directory-option", f"namespace={namespace}")


def _bootstrap(url: str, port: Sequence[str]) -> str:
    """host:port of a prefill engine's bootstrap server; empty where none is said."""
    if len(port) > 1:
        raise NotTaken(f"--prefill {url} has more than a port after it: {' '.join(port)}")
    if not port or port[0].lower() == "none":
        return ""
    host = urlsplit(url).hostname
    if host is None:
        raise NotTaken(f"--prefill {url} is no URL")
    return f"[{host}]:{port[0]}" if ":" in host else f"{host}:{port[0]}"


def _engine(found: FlagTranslation, role: str, url: str, kv: str, ranks: int) -> None:
    if not kv and ranks == 1:
        found.flag(f"--{role}", url)
        return
    said = {"role": role, "url": url, "kv": kv, "dp": str(ranks) if ranks > 1 else ""}
    found.flag("--instance", ",".join(f"{key}={value}" for key, value in said.items() if value))


def _policies(said: dict[str, Any], found: FlagTranslation) -> None:
    general = said.get("--policy")
    chosen = {
        "prefill": said.get("--prefill-policy", general),
        "decode": said.get("--decode-policy", general),
        "plain": general,
    }
    for role, name in chosen.items():
        if name is None:
            continue
        if name not in POLICIES:
            raise NotTaken(f"vllm-router has no policy {name!r}: {', '.join(POLICIES)}")
        found.flag(f"--{role}-policy", POLICIES[name])


def _limits(said: dict[str, Any], found: FlagTranslation) -> None:
    for name in ("--queue-size", "--queue-timeout-secs"):
        if name in said:
            found.note(name, "calls wait for room or a target: --decode-concurrency, --ttft-target")
    if "--disable-retries" in said:
        said["--retry-max-retries"] = 1
    if "--disable-circuit-breaker" in said:
        found.flag("--max-failures", 0)
    elif "--cb-failure-threshold" in said:
        wanted = _number(said, "--cb-failure-threshold", 1)
        found.flag("--max-failures", min(wanted, WINDOW))
        if wanted > WINDOW:
            found.note("--cb-failure-threshold", f"{WINDOW} calls are remembered of an engine")
    endpoint = said.get("--health-check-endpoint", "/health")
    if endpoint != "/health":
        raise NotTaken(f"--health-check-endpoint {endpoint} cannot be taken over: /health is asked")


def _number(said: dict[str, Any], name: str, default: int) -> int:
    try:
        found = int(said.get(name, default))
    except ValueError:
        raise NotTaken(f"{name} {said[name]} is no number") from None
    if found < 1:
        raise NotTaken(f"{name} {found} is less than 1")
    return found
