"""The gateway's commands. Heavy imports wait until a command runs, so that help is quick."""

import json
import signal
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Literal

import typer

CONNECTION, ENGINES, SCHEDULING, LIMITS, SECURITY, INSIGHT = (
    "Where clients connect",
    "Engines",
    "Scheduling",
    "Limits",
    "Security",
    "Insight",
)
WITHOUT_EXTRA = "the demo needs more packages: pip install 'pdgate[demo]'"

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
}
ENGINE_FLAGS = ("instance", "prefill", "decode", "plain")


def _option(panel: str, help: str, default: str = "") -> Any:
    """A flag whose default is the settings' (None here), shown in words."""
    return typer.Option(help=help, rich_help_panel=panel, show_default=default or False)


Urls = list[str] | None


def serve(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option(help="TOML file; flags go over it.", show_default=False)
    ] = None,
    host: Annotated[str | None, _option(CONNECTION, "Address to listen on.", "127.0.0.1")] = None,
    port: Annotated[int | None, _option(CONNECTION, "0 takes a free one.", "8000")] = None,
    workers: Annotated[int | None, _option(CONNECTION, "Processes.", "1")] = None,
    instance: Annotated[
        Urls,
        _option(
            ENGINES,
            "One engine, as role=prefill,url=http://h:p and, if need be, kv=h:p, protocol=, "
            "model=, generation=, dp_rank=, dp_size=, id=, host=, rack=, zone=. Repeat it. "
            "The engines of flags replace those of the file.",
        ),
    ] = None,
    prefill: Annotated[Urls, _option(ENGINES, "URL of a prefill engine; repeat it.")] = None,
    decode: Annotated[Urls, _option(ENGINES, "URL of a decode engine; repeat it.")] = None,
    plain: Annotated[Urls, _option(ENGINES, "URL of an engine that does both.")] = None,
    directory: Annotated[
        str | None, _option(ENGINES, "Where engines are found: etcd, redis, file, dns, ...")
    ] = None,
    directory_option: Annotated[Urls, _option(ENGINES, "Its name=value; repeat it.")] = None,
    etcd: Annotated[
        str | None,
        _option(ENGINES, "URL of the etcd that engines announce themselves in."),
    ] = None,
    etcd_user_file: Annotated[
        str | None, _option(ENGINES, "File with name:password, where etcd asks for one.")
    ] = None,
    etcd_ca_file: Annotated[
        str | None, _option(ENGINES, "Certificates (PEM) that vouch for an etcd at https://.")
    ] = None,
    state_dir: Annotated[
        str | None,
        _option(ENGINES, "Folder for what the directory told last, for a start while it is away."),
    ] = None,
    redis: Annotated[
        str | None,
        _option(SCHEDULING, "URL of the Redis in which replicas share load and thresholds."),
    ] = None,
    pdd_protocol: Annotated[
        str | None,
        _option(ENGINES, "For engines that name none; see pdgate protocols.", "vllm-nixl"),
    ] = None,
    mooncake_generation: Annotated[
        Literal["auto", "a", "b", "c", "d"] | None,
        _option(ENGINES, "For vllm-mooncake engines.", "auto"),
    ] = None,
    neuron_generation: Annotated[
        Literal["zmq", "static", "nixl"] | None, _option(ENGINES, "For neuron engines.", "zmq")
    ] = None,
    scheduling_mode: Annotated[
        Literal["batch", "staged"] | None,
        _option(SCHEDULING, "batch chooses both engines at once.", "batch if it can"),
    ] = None,
    disaggregate: Annotated[
        Literal["always", "never", "uncached_tokens_above", "auto"] | None,
        _option(SCHEDULING, "Which calls are split over two engines.", "always"),
    ] = None,
    uncached_tokens: Annotated[
        int | None, _option(SCHEDULING, "Longer prompts are split.", "1000")
    ] = None,
    max_prefill_calls: Annotated[
        int | None, _option(SCHEDULING, "And only while prefill has fewer calls.", "2")
    ] = None,
    prefill_policy: Annotated[
        str | None, _option(SCHEDULING, "Chooses prefill engines.", "least_loaded")
    ] = None,
    decode_policy: Annotated[
        str | None, _option(SCHEDULING, "Chooses decode engines.", "least_loaded")
    ] = None,
    plain_policy: Annotated[
        str | None, _option(SCHEDULING, "Chooses plain engines.", "least_loaded")
    ] = None,
    ttft_target: Annotated[float | None, _option(SCHEDULING, "For policies.", "5")] = None,
    tpot_target: Annotated[float | None, _option(SCHEDULING, "For policies.", "0.1")] = None,
    prefix_index_bytes: Annotated[int | None, _option(LIMITS, "Of memory.", "268435456")] = None,
    kv_tokens: Annotated[int | None, _option(SCHEDULING, "In an engine's KV cache.")] = None,
    kv_events: Annotated[str | None, _option(ENGINES, "ask, or tcp://{host}:5557.")] = None,
    kv_events_replay: Annotated[str | None, _option(ENGINES, "tcp://{host}:port.")] = None,
    kv_events_topic: Annotated[str | None, _option(ENGINES, "As engines are told.")] = None,
    kv_events_tokenize: Annotated[
        bool | None, _option(ENGINES, "Ask engines for the tokens of texts.", "yes")
    ] = None,
    adaptive: Annotated[
        bool | None, _option(SCHEDULING, "Turn engines with role both to where they help.", "no")
    ] = None,
    adaptive_period: Annotated[float | None, _option(SCHEDULING, "Seconds: a turn.", "5")] = None,
    adaptive_stay: Annotated[float | None, _option(SCHEDULING, "Seconds: a side.", "60")] = None,
    prefill_concurrency: Annotated[
        int | None, _option(LIMITS, "Calls at one prefill engine; others wait.")
    ] = None,
    decode_concurrency: Annotated[
        int | None, _option(LIMITS, "Calls at one decode engine; others wait.")
    ] = None,
    min_kv_free: Annotated[
        float | None, _option(LIMITS, "Share of decode's KV pages without which calls wait.")
    ] = None,
    max_waiting: Annotated[
        int | None, _option(LIMITS, "Calls that may wait for a model.", "1000")
    ] = None,
    max_wait: Annotated[float | None, _option(LIMITS, "Seconds that one may wait.", "30")] = None,
    max_ttft: Annotated[float | None, _option(LIMITS, "Seconds: refuse what is later.")] = None,
    trust_client_kv_params: Annotated[
        bool | None, _option(LIMITS, "Let clients choose whom engines dial.", "no")
    ] = None,
    max_body_bytes: Annotated[int | None, _option(LIMITS, "Of a request.", "268435456")] = None,
    max_attempts: Annotated[int | None, _option(LIMITS, "Before the first byte.", "3")] = None,
    resume: Annotated[
        bool | None, _option(LIMITS, "Go on with broken streams at another engine.", "no")
    ] = None,
    on_prefill_failure: Annotated[
        Literal["retry_then_recompute", "retry", "recompute", "fail"] | None,
        _option(LIMITS, "recompute: decode reads the prompt.", "retry_then_recompute"),
    ] = None,
    kv_lease_seconds: Annotated[
        float | None,
        _option(LIMITS, "How long prefill engines keep KV."),
    ] = None,
    connect_timeout: Annotated[float | None, _option(LIMITS, "Seconds to connect.", "5")] = None,
    prefill_timeout: Annotated[
        float | None, _option(LIMITS, "Seconds: until prefill has answered.", "600")
    ] = None,
    first_byte_timeout: Annotated[
        float | None, _option(LIMITS, "Seconds: until decode's status.", "600")
    ] = None,
    kv_wait_timeout: Annotated[
        float | None, _option(LIMITS, "Seconds: the same once prefill has read the prompt.")
    ] = None,
    idle_timeout: Annotated[
        float | None, _option(LIMITS, "Seconds: between pieces of an answer.", "300")
    ] = None,
    ping: Annotated[
        float | None, _option(LIMITS, "Seconds of silence before a comment; 0: none.", "15")
    ] = None,
    total_timeout: Annotated[
        float | None, _option(LIMITS, "Seconds: for a whole call, however well it goes.")
    ] = None,
    retry_timeout: Annotated[
        float | None, _option(LIMITS, "Seconds: until no more attempts begin.", "600")
    ] = None,
    health_interval: Annotated[
        float | None, _option(LIMITS, "Seconds: between health checks.", "1")
    ] = None,
    health_timeout: Annotated[
        float | None, _option(LIMITS, "Seconds: for a health check.", "2")
    ] = None,
    health_retry: Annotated[
        float | None, _option(LIMITS, "Seconds: between checks of who is not well.", "0.5")
    ] = None,
    max_failures: Annotated[
        int | None, _option(LIMITS, "In a row, to keep calls from an engine; 0: never.", "3")
    ] = None,
    slow_start: Annotated[
        float | None, _option(LIMITS, "Seconds: for an engine that comes back.", "5")
    ] = None,
    drain_seconds: Annotated[
        float | None, _option(LIMITS, "Seconds: for running calls, at the end.", "30")
    ] = None,
    drain_notice: Annotated[
        float | None, _option(LIMITS, "Seconds: refuse calls at least, at the end.", "0")
    ] = None,
    engine_metrics_interval: Annotated[
        float | None, _option(LIMITS, "Seconds: between looks at engines' metrics; 0: none.", "5")
    ] = None,
    engine_metrics_timeout: Annotated[
        float | None, _option(LIMITS, "Seconds: for such a look.", "2")
    ] = None,
    api_keys_file: Annotated[
        str | None,
        _option(SECURITY, "Serve calls only for who has one of the API keys in this file."),
    ] = None,
    client_authorization: Annotated[
        Literal["drop", "pass", "replace"] | None,
        _option(SECURITY, "What engines get of the client's header Authorization."),
    ] = None,
    engine_key_file: Annotated[
        str | None, _option(SECURITY, "The key that engines ask for is in this file.")
    ] = None,
    forward_headers: Annotated[
        str | None, _option(SECURITY, "More headers that engines get, between commas.")
    ] = None,
    return_headers: Annotated[
        str | None, _option(SECURITY, "More headers that clients get, between commas.")
    ] = None,
    tls_cert_file: Annotated[
        str | None, _option(SECURITY, "Speak https, with the certificate in this PEM file.")
    ] = None,
    tls_key_file: Annotated[str | None, _option(SECURITY, "The key of that certificate.")] = None,
    tls_client_ca_file: Annotated[
        str | None, _option(SECURITY, "Serve only clients with a certificate of these.")
    ] = None,
    engine_ca_file: Annotated[
        str | None, _option(SECURITY, "Who signed the certificates of engines.")
    ] = None,
    engine_cert_file: Annotated[
        str | None, _option(SECURITY, "The certificate that engines are shown.")
    ] = None,
    engine_cert_key_file: Annotated[
        str | None, _option(SECURITY, "The key of that certificate.")
    ] = None,
    engine_server_name: Annotated[
        str | None, _option(SECURITY, "The name in the certificates of engines.")
    ] = None,
    admin_token_file: Annotated[
        str | None,
        _option(LIMITS, "Serve /admin/... for who knows the token in this file."),
    ] = None,
    cors_origins: Annotated[
        str | None, _option(SECURITY, "Web pages that may call from browsers, between commas.")
    ] = None,
    admin_listen: Annotated[
        str | None,
        _option(SECURITY, "host:port of a listener for /admin/... and /debug/... alone."),
    ] = None,
    metrics_on: Annotated[
        Literal["both", "admin"] | None, _option(SECURITY, "Listeners with /metrics.", "both")
    ] = None,
    debug_routes: Annotated[
        bool | None, _option(INSIGHT, "Serve GET /debug/calls/{id}.", "no")
    ] = None,
    debug_headers: Annotated[
        bool | None, _option(INSIGHT, "Name the instances to clients.", "no")
    ] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None,
        _option(INSIGHT, "From here on.", "info"),
    ] = None,
    call_log: Annotated[bool | None, _option(INSIGHT, "One line for each call.", "no")] = None,
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

    # The server finishes its calls and then sends the signal once more, to end as told to.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    try:
        server.serve(settings, source)
    except SystemExit as end:
        # It has said why; its own codes are not ours.
        raise typer.Exit(1 if end.code else 0) from None


def _stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


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
        if name not in (*ENGINE_FLAGS, "config")
    }
    return {**kept, "instances": instances} if instances else kept


def protocols(
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """List the protocols that are installed, from which package, and their modes."""
    from pdgate.gateway.installed import lines, protocols

    found = protocols()
    if as_json:
        typer.echo(json.dumps([one.as_json() for one in found], indent=2))
    else:
        typer.echo("\n".join(lines(found)))


def demo(
    pdd_protocol: Annotated[str, typer.Option(help="How KV is handed over.")] = "vllm-nixl",
    scheduling_mode: Annotated[
        Literal["batch", "staged"] | None,
        typer.Option(help="As in serve.", show_default="batch if it can"),
    ] = None,
    prefills: Annotated[int, typer.Option(help="Prefill engines.")] = 1,
    decodes: Annotated[int, typer.Option(help="Decode engines.")] = 1,
    transfer: Annotated[str, typer.Option(help="What moves the KV: shm or tcp.")] = "shm",
    port: Annotated[int, typer.Option(help="Of the gateway; 0: a free one.")] = 8000,
    model: Annotated[
        Path | None,
        typer.Option(help="Folder of a Llama model; a tiny one is built in.", show_default=False),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Stop after the first answer.")] = False,
    queue: Annotated[
        str,
        typer.Option(help="With decode-first: redis://host:port/0.", show_default="one of its own"),
    ] = "",
) -> None:
    """Start engines and the gateway on this machine, ask one question, show how it went."""
    from pdgate.gateway.demo.plan import BadPlan, Plan

    try:
        plan = Plan(
            protocol=pdd_protocol,
            mode=scheduling_mode,
            prefills=prefills,
            decodes=decodes,
            transfer=transfer,
            port=port,
            model=model,
            once=once,
            queue=queue,
        )
        plan.check()
        from pdgate.gateway.demo.run import run
    except BadPlan as error:
        typer.echo(f"pdgate demo: {error}", err=True)
        raise typer.Exit(2) from None
    except ModuleNotFoundError as error:
        if error.name != "openai":
            raise
        typer.echo(WITHOUT_EXTRA, err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(run(plan))
