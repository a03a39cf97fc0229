"""How flags of `pdgate serve` become configuration keys."""

from typing import Any

import typer

CONNECTION, ENGINES, SCHEDULING, LIMITS, SECURITY, INSIGHT = (
    "Where clients connect",
    "Engines",
    "Scheduling",
    "Limits",
    "Security",
    "Insight",
)

# Flags whose name is not the key's. All others are spelled like their key.
KEYS = {
    "host": "listen.host",
    "port": "listen.port",
    "workers": "listen.workers",
    "connect_timeout": "timeouts.connect_seconds",
    "prefill_timeout": "timeouts.prefill_seconds",
    "first_byte_timeout": "timeouts.first_byte_seconds",
    "kv_wait_timeout": "timeouts.kv_wait_seconds",
    "idle_timeout": "timeouts.idle_seconds",
    "ping": "timeouts.ping_seconds",
    "retry_timeout": "timeouts.retry_seconds",
    "total_timeout": "timeouts.total_seconds",
    "health_interval": "health.interval_seconds",
    "health_timeout": "health.timeout_seconds",
    "health_retry": "health.retry_seconds",
    "max_failures": "health.max_failures",
    "slow_start": "health.slow_start_seconds",
    "drain_seconds": "drain.grace_seconds",
    "drain_notice": "drain.notice_seconds",
    "engine_metrics_interval": "engine_metrics.interval_seconds",
    "engine_metrics_timeout": "engine_metrics.timeout_seconds",
    "tls_cert_file": "tls.cert_file",
    "tls_key_file": "tls.key_file",
    "tls_client_ca_file": "tls.client_ca_file",
    "engine_ca_file": "engine_tls.ca_file",
    "engine_cert_file": "engine_tls.cert_file",
    "engine_cert_key_file": "engine_tls.key_file",
    "engine_server_name": "engine_tls.server_name",
    "disaggregate": "disaggregation.rule",
    "uncached_tokens": "disaggregation.uncached_tokens",
    "max_prefill_calls": "disaggregation.max_prefill_calls",
    "ttft_target": "targets.ttft_seconds",
    "tpot_target": "targets.tpot_seconds",
    "adaptive": "adaptive.enabled",
    "adaptive_period": "adaptive.period_seconds",
    "adaptive_stay": "adaptive.stay_seconds",
    "prefix_index_bytes": "prefix_index.max_bytes",
    "kv_tokens": "prefix_index.kv_tokens",
    "kv_events": "kv_events.endpoint",
    "kv_events_replay": "kv_events.replay_endpoint",
    "kv_events_topic": "kv_events.topic",
    "kv_events_tokenize": "kv_events.tokenize",
    "prefill_concurrency": "admission.prefill_concurrency",
    "decode_concurrency": "admission.decode_concurrency",
    "min_kv_free": "admission.kv_free",
    "max_waiting": "admission.waiting",
    "max_wait": "admission.wait_seconds",
    "max_ttft": "admission.ttft_seconds",
    "directory_option": "directory_options",
    "otlp_endpoint": "tracing.endpoint",
    "trace_sample": "tracing.sample_ratio",
    "trace_service": "tracing.service_name",
    "otlp_headers_file": "tracing.headers_file",
}
NOT_OF_SETTINGS = ("config", "compat")
ENGINE_FLAGS = ("instance", "prefill", "decode", "plain")


def option(panel: str, help: str, default: str = "") -> Any:
    """A flag whose default is the settings' (None here), shown in words."""
    return typer.Option(help=help, rich_help_panel=panel, show_default=default or False)


def overrides(flags: dict[str, Any]) -> dict[str, Any]:
    """What the flags that were given put over the file: dotted key -> value."""
    from pdgate.gateway.config.instances import from_flag

    given = {name: value for name, value in flags.items() if value not in (None, [], ())}
    instances = [from_flag(text) for text in given.get("instance", ())]
    for role in ("prefill", "decode", "plain"):
        instances += [{"role": role, "url": url} for url in given.get(role, ())]
    kept = {
        KEYS.get(name, name): value
        for name, value in given.items()
        if name not in (*ENGINE_FLAGS, *NOT_OF_SETTINGS)
    }
    return {**kept, "instances": instances} if instances else kept
