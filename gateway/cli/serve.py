"""`pdgate serve`. Heavy imports wait until it runs, so that help is quick."""

import signal
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal

import typer

from pdgate.gateway.cli.flags import (
    CONNECTION,
    ENGINES,
    INSIGHT,
    LIMITS,
    SCHEDULING,
    SECURITY,
    option,
    overrides,
)

Urls = list[str] | None


def serve(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option(help="TOML file; flags go over it.", show_default=False)
    ] = None,
    compat: Annotated[
        str | None,
        option(CONNECTION, "Read the flags of vllm-router or vllm-toy-proxy instead of these."),
    ] = None,
    host: Annotated[str | None, option(CONNECTION, "Address to listen on.", "127.0.0.1")] = None,
    port: Annotated[int | None, option(CONNECTION, "0 takes a free one.", "8000")] = None,
    workers: Annotated[int | None, option(CONNECTION, "Processes.", "1")] = None,
    instance: Annotated[
        Urls,
        option(
            ENGINES,
            "One engine, as role=prefill,url=http://h:p and, if need be, kv=h:p, protocol=, "
            "model=, generation=, dp_rank=, dp_size=, id=, host=, rack=, zone=. Repeat it. "
            "The engines of flags replace those of the file.",
        ),
    ] = None,
    prefill: Annotated[Urls, option(ENGINES, "URL of a prefill engine; repeat it.")] = None,
    decode: Annotated[Urls, option(ENGINES, "URL of a decode engine; repeat it.")] = None,
    plain: Annotated[Urls, option(ENGINES, "URL of an engine that does both.")] = None,
    directory: Annotated[
        str | None, option(ENGINES, "Where engines are found: etcd, redis, file, dns, ...")
    ] = None,
    directory_option: Annotated[Urls, option(ENGINES, "Its name=value; repeat it.")] = None,
    etcd: Annotated[
        str | None,
        option(ENGINES, "URL of the etcd that engines announce themselves in."),
    ] = None,
    etcd_user_file: Annotated[
        str | None, option(ENGINES, "File with name:password, where etcd asks for one.")
    ] = None,
    etcd_ca_file: Annotated[
        str | None, option(ENGINES, "Certificates (PEM) that vouch for an etcd at https://.")
    ] = None,
    state_dir: Annotated[
        str | None,
        option(ENGINES, "Folder for what the directory told last, for a start while it is away."),
    ] = None,
    redis: Annotated[
        str | None,
        option(SCHEDULING, "URL of the Redis in which replicas share load and thresholds."),
    ] = None,
    pdd_protocol: Annotated[
        str | None,
        option(ENGINES, "For engines that name none; see pdgate protocols.", "vllm-nixl"),
    ] = None,
    mooncake_generation: Annotated[
        Literal["auto", "a", "b", "c", "d"] | None,
        option(ENGINES, "For vllm-mooncake engines.", "auto"),
    ] = None,
    neuron_generation: Annotated[
        Literal["zmq", "static", "nixl"] | None, option(ENGINES, "For neuron engines.", "zmq")
    ] = None,
    scheduling_mode: Annotated[
        Literal["batch", "staged"] | None,
        option(SCHEDULING, "batch chooses both engines at once.", "batch if it can"),
    ] = None,
    disaggregate: Annotated[
        Literal["always", "never", "uncached_tokens_above", "auto"] | None,
        option(SCHEDULING, "Which calls are split over two engines.", "always"),
    ] = None,
    uncached_tokens: Annotated[
        int | None, option(SCHEDULING, "Longer prompts are split.", "1000")
    ] = None,
    max_prefill_calls: Annotated[
        int | None, option(SCHEDULING, "And only while prefill has fewer calls.", "2")
    ] = None,
    prefill_policy: Annotated[
        str | None, option(SCHEDULING, "Chooses prefill engines.", "slo")
    ] = None,
    decode_policy: Annotated[
        str | None, option(SCHEDULING, "Chooses decode engines.", "slo")
    ] = None,
    plain_policy: Annotated[str | None, option(SCHEDULING, "Chooses plain engines.", "slo")] = None,
    ttft_target: Annotated[float | None, option(SCHEDULING, "For policies.", "5")] = None,
    tpot_target: Annotated[float | None, option(SCHEDULING, "For policies.", "0.1")] = None,
    prefix_index_bytes: Annotated[int | None, option(LIMITS, "Of memory.", "268435456")] = None,
    kv_tokens: Annotated[int | None, option(SCHEDULING, "In an engine's KV cache.")] = None,
    kv_events: Annotated[str | None, option(ENGINES, "ask, or tcp://{host}:5557.")] = None,
    kv_events_replay: Annotated[str | None, option(ENGINES, "tcp://{host}:port.")] = None,
    kv_events_topic: Annotated[str | None, option(ENGINES, "As engines are told.")] = None,
    kv_events_tokenize: Annotated[
        bool | None, option(ENGINES, "Ask engines for the tokens of texts.", "yes")
    ] = None,
    adaptive: Annotated[
        bool | None, option(SCHEDULING, "Turn engines with role both to where they help.", "no")
    ] = None,
    adaptive_period: Annotated[float | None, option(SCHEDULING, "Seconds: a turn.", "5")] = None,
    adaptive_stay: Annotated[float | None, option(SCHEDULING, "Seconds: a side.", "60")] = None,
    prefill_concurrency: Annotated[
        int | None, option(LIMITS, "Calls at one prefill engine; others wait.")
    ] = None,
    decode_concurrency: Annotated[
        int | None, option(LIMITS, "Calls at one decode engine; others wait.")
    ] = None,
    min_kv_free: Annotated[
        float | None, option(LIMITS, "Share of decode's KV pages without which calls wait.")
    ] = None,
    max_waiting: Annotated[
        int | None, option(LIMITS, "Calls that may wait for a model.", "1000")
    ] = None,
    max_wait: Annotated[float | None, option(LIMITS, "Seconds that one may wait.", "30")] = None,
    max_ttft: Annotated[float | None, option(LIMITS, "Seconds: refuse what is later.")] = None,
    trust_client_kv_params: Annotated[
        bool | None, option(LIMITS, "Let clients choose whom engines dial.", "no")
    ] = None,
    max_body_bytes: Annotated[int | None, option(LIMITS, "Of a request.", "268435456")] = None,
    max_attempts: Annotated[int | None, option(LIMITS, "Before the first byte.", "3")] = None,
    resume: Annotated[
        bool | None, option(LIMITS, "Go on with broken streams at another engine.", "no")
    ] = None,
    on_prefill_failure: Annotated[
        Literal["retry_then_recompute", "retry", "recompute", "fail"] | None,
        option(LIMITS, "recompute: decode reads the prompt.", "retry_then_recompute"),
    ] = None,
    kv_lease_seconds: Annotated[
        float | None,
        option(LIMITS, "How long prefill engines keep KV."),
    ] = None,
    connect_timeout: Annotated[float | None, option(LIMITS, "Seconds to connect.", "5")] = None,
    prefill_timeout: Annotated[
        float | None, option(LIMITS, "Seconds: until prefill has answered.", "600")
    ] = None,
    first_byte_timeout: Annotated[
        float | None, option(LIMITS, "Seconds: until decode's status.", "600")
    ] = None,
    kv_wait_timeout: Annotated[
        float | None, option(LIMITS, "Seconds: the same once prefill has read the prompt.")
    ] = None,
    idle_timeout: Annotated[
        float | None, option(LIMITS, "Seconds: between pieces of an answer.", "300")
    ] = None,
    ping: Annotated[
        float | None, option(LIMITS, "Seconds of silence before a comment; 0: none.", "15")
    ] = None,
    total_timeout: Annotated[
        float | None, option(LIMITS, "Seconds: for a whole call, however well it goes.")
    ] = None,
    retry_timeout: Annotated[
        float | None, option(LIMITS, "Seconds: until no more attempts begin.", "600")
    ] = None,
    health_interval: Annotated[
        float | None, option(LIMITS, "Seconds: between health checks.", "1")
    ] = None,
    health_timeout: Annotated[
        float | None, option(LIMITS, "Seconds: for a health check.", "2")
    ] = None,
    health_retry: Annotated[
        float | None, option(LIMITS, "Seconds: between checks of who is not well.", "0.5")
    ] = None,
    max_failures: Annotated[
        int | None, option(LIMITS, "In a row, to keep calls from an engine; 0: never.", "3")
    ] = None,
    slow_start: Annotated[
        float | None, option(LIMITS, "Seconds: for an engine that comes back.", "5")
    ] = None,
    drain_seconds: Annotated[
        float | None, option(LIMITS, "Seconds: for running calls, at the end.", "30")
    ] = None,
    drain_notice: Annotated[
        float | None, option(LIMITS, "Seconds: refuse calls at least, at the end.", "0")
    ] = None,
    engine_metrics_interval: Annotated[
        float | None, option(LIMITS, "Seconds: between looks at engines' metrics; 0: none.", "5")
    ] = None,
    engine_metrics_timeout: Annotated[
        float | None, option(LIMITS, "Seconds: for such a look.", "2")
    ] = None,
    api_keys_file: Annotated[
        str | None,
        option(SECURITY, "Serve calls only for who has one of the API keys in this file."),
    ] = None,
    client_authorization: Annotated[
        Literal["drop", "pass", "replace"] | None,
        option(SECURITY, "What engines get of the client's header Authorization."),
    ] = None,
    engine_key_file: Annotated[
        str | None, option(SECURITY, "The key that engines ask for is in this file.")
    ] = None,
    forward_headers: Annotated[
        str | None, option(SECURITY, "More headers that engines get, between commas.")
    ] = None,
    return_headers: Annotated[
        str | None, option(SECURITY, "More headers that clients get, between commas.")
    ] = None,
    tls_cert_file: Annotated[
        str | None, option(SECURITY, "Speak https, with the certificate in this PEM file.")
    ] = None,
    tls_key_file: Annotated[str | None, option(SECURITY, "The key of that certificate.")] = None,
    tls_client_ca_file: Annotated[
        str | None, option(SECURITY, "Serve only clients with a certificate of these.")
    ] = None,
    engine_ca_file: Annotated[
        str | None, option(SECURITY, "Who signed the certificates of engines.")
    ] = None,
    engine_cert_file: Annotated[
        str | None, option(SECURITY, "The certificate that engines are shown.")
    ] = None,
    engine_cert_key_file: Annotated[
        str | None, option(SECURITY, "The key of that certificate.")
    ] = None,
    engine_server_name: Annotated[
        str | None, option(SECURITY, "The name in the certificates of engines.")
    ] = None,
    admin_token_file: Annotated[
        str | None,
        option(LIMITS, "Serve /admin/... for who knows the token in this file."),
    ] = None,
    cors_origins: Annotated[
        str | None, option(SECURITY, "Web pages that may call from browsers, between commas.")
    ] = None,
    admin_listen: Annotated[
        str | None,
        option(SECURITY, "host:port of a listener for /admin/... and /debug/... alone."),
    ] = None,
    metrics_on: Annotated[
        Literal["both", "admin"] | None, option(SECURITY, "Listeners with /metrics.", "both")
    ] = None,
    console: Annotated[
        bool | None, option(INSIGHT, "Serve /console, if there is an admin token.", "yes")
    ] = None,
    passthrough: Annotated[
        bool | None, option(LIMITS, "Unknown /v1 routes pass to an engine.", "no")
    ] = None,
    debug_routes: Annotated[
        bool | None, option(INSIGHT, "Serve GET /debug/calls/{id}.", "no")
    ] = None,
    debug_headers: Annotated[
        bool | None, option(INSIGHT, "Name the instances to clients.", "no")
    ] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None,
        option(INSIGHT, "From here on.", "info"),
    ] = None,
    log_format: Annotated[
        Literal["text", "json"] | None, option(INSIGHT, "Of lines on stderr.", "text")
    ] = None,
    call_log: Annotated[bool | None, option(INSIGHT, "One line for each call.", "no")] = None,
    log_prompts: Annotated[bool | None, option(INSIGHT, "Show in it what was asked.", "no")] = None,
    otlp_endpoint: Annotated[
        str | None, option(INSIGHT, "URL of a collector for traces, like http://host:4318.")
    ] = None,
    trace_sample: Annotated[float | None, option(INSIGHT, "Share of calls.", "1")] = None,
    trace_service: Annotated[str | None, option(INSIGHT, "Name in traces.", "pdgate")] = None,
    otlp_headers_file: Annotated[
        str | None, option(INSIGHT, "Lines of name: value for the collector.")
    ] = None,
) -> None:
    """Run the gateway.

    Engines may still be down: they are used as soon as they are well.
    """
    from pdgate.gateway.config import ConfigError
    from pdgate.gateway.lifecycle.source import Source

    try:
        source = Source(config and config.absolute(), overrides(context.params))
        settings = source.read()
    except ConfigError as error:
        typer.echo(f"pdgate serve: {error}", err=True)
        raise typer.Exit(2) from None

    from pdgate.gateway import server
    from pdgate.gateway.listening import CannotListen

    # The server finishes its calls and then sends the signal once more, to end as told to.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    try:
        server.serve(settings, source)
    except CannotListen as error:
        typer.echo(f"pdgate serve: {error}", err=True)
        raise typer.Exit(1) from None
    except SystemExit as end:
        # It has said why; its own codes are not ours.
        raise typer.Exit(1 if end.code else 0) from None


def _stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)
