"""Sections of the settings, one for each part of the gateway: types and defaults."""

from typing import Annotated, Literal

from pydantic import Field

from pdgate.gateway.config.instances import HIGHEST_PORT
from pdgate.gateway.config.setting import (
    CONNECTION,
    ENGINES,
    INSIGHT,
    LIMITS,
    SCHEDULING,
    SECURITY,
    OnReload,
    Section,
    Setting,
)
from pdgate.gateway.config.values import (
    Count,
    KvEndpoint,
    Listener,
    Networks,
    OtlpEndpoint,
    OtlpHeadersFile,
    RedisUrl,
    Seconds,
    SecondsOrZero,
)
from pdgate.scheduling.health.breaker import WINDOW, BreakerLimits

_BREAKER = BreakerLimits()


class ListenSection(Section, panel=CONNECTION):
    """The address that clients connect to. Port 0 takes a free one."""

    host: Annotated[str, Setting("Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=HIGHEST_PORT), Setting("0 takes a free one.")] = 8000
    workers: Annotated[Count, Setting("Processes.")] = 1


class PickerSection(Section, panel=CONNECTION):
    """Endpoint picker for gateways made of Envoy (`pdgate epp`)."""

    listen: Annotated[
        Listener, Setting("host:port at which Envoy asks for engines (gRPC).", "--epp-listen")
    ] = ""
    """host:port at which a gateway made of Envoy asks for engines (ext_proc); empty for none."""
    cert_file: Annotated[
        str, Setting("Certificates (PEM) to show it; else one made at the start.", "--epp-cert")
    ] = ""
    """Certificates (PEM) that Envoy is shown; one is made at each start, unless there is a file."""
    key_file: Annotated[str, Setting("Their key, if it is elsewhere.", "--epp-key")] = ""
    """Their key, if it is in another file."""
    insecure: Annotated[bool, Setting("Speak to it without TLS.", "--epp-insecure")] = False
    """Speaks without TLS."""
    fallbacks: Annotated[
        int, Field(ge=0, le=16), Setting("More engines to try, for each call.", "--epp-fallbacks")
    ] = 1
    """Further engines that are named for each call, which Envoy tries if it is told to retry."""


class TimeoutsSection(Section, panel=LIMITS, on_reload=OnReload.TIMES):
    """How long an engine may take."""

    connect_seconds: Annotated[Seconds, Setting("Seconds to connect.", "--connect-timeout")] = 5.0
    """Until it accepts a connection."""
    prefill_seconds: Annotated[
        Seconds, Setting("Seconds: until prefill has answered.", "--prefill-timeout")
    ] = 600.0
    """Until prefill has answered in full."""
    first_byte_seconds: Annotated[
        Seconds, Setting("Seconds: until decode's status.", "--first-byte-timeout")
    ] = 600.0
    """Until decode's status line."""
    kv_wait_seconds: Annotated[
        Seconds | None,
        Setting("Seconds: the same once prefill has read the prompt.", "--kv-wait-timeout"),
    ] = None
    """The same where prefill has read the prompt, so that decode has only to take the KV over; as
    first_byte_seconds unless it is given."""
    idle_seconds: Annotated[
        Seconds, Setting("Seconds: between pieces of an answer.", "--idle-timeout")
    ] = 300.0
    """Between two pieces of decode's answer."""
    ping_seconds: Annotated[
        SecondsOrZero, Setting("Seconds of silence before a comment; 0: none.", "--ping")
    ] = 15.0
    """Of silence in a stream, after which a comment keeps the client's connection alive; 0 sends
    none."""
    total_seconds: Annotated[
        Seconds | None,
        Setting("Seconds: for a whole call, however well it goes.", "--total-timeout"),
    ] = None
    """From a call's arrival to its end, however well it goes; no limit by default."""
    session_idle_seconds: Annotated[
        Seconds | None,
        Setting("Seconds: without a frame in a session.", "--session-idle-timeout"),
    ] = 600.0
    """Without a frame of either side in a realtime session, pings included, after which it is closed."""
    retry_seconds: Annotated[
        Seconds, Setting("Seconds: until no more attempts begin.", "--retry-timeout")
    ] = 600.0
    """From a call's arrival, without what it waited for room; no further attempt begins later."""


class ModelEntry(Section):
    """What is different for one model.

    Attributes:
        name: As engines name it; an adapter (LoRA) is a model of its own.
        aliases: Other names by which calls may name it; engines get its own.
        pdd_protocol: For its instances (those with model = name) that name none.
        prefill_policy: Chooses its prefill engines; as for all models, if it is empty.
        decode_policy: Its decode engines.
        plain_policy: Its plain engines.
        prefill_seconds: Until prefill has answered in full.
        first_byte_seconds: Until decode's status line.
        kv_wait_seconds: The same where prefill has read the prompt.
        idle_seconds: Between two pieces of decode's answer.
        total_seconds: From a call's arrival to its end.
    """

    name: Annotated[str, Field(min_length=1)]
    aliases: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    pdd_protocol: str = ""
    prefill_policy: str = ""
    decode_policy: str = ""
    plain_policy: str = ""
    prefill_seconds: Seconds | None = None
    first_byte_seconds: Seconds | None = None
    kv_wait_seconds: Seconds | None = None
    idle_seconds: Seconds | None = None
    total_seconds: Seconds | None = None


class HealthSection(Section, panel=LIMITS, on_reload=OnReload.HEALTH):
    """How often engines are asked whether they are well, and when they get no calls."""

    interval_seconds: Annotated[
        Seconds, Setting("Seconds: between health checks.", "--health-interval")
    ] = 1.0
    timeout_seconds: Annotated[
        Seconds, Setting("Seconds: for a health check.", "--health-timeout")
    ] = 2.0
    retry_seconds: Annotated[
        Seconds, Setting("Seconds: between checks of who is not well.", "--health-retry")
    ] = _BREAKER.retry_seconds
    """Between questions while it is not well."""
    max_failures: Annotated[
        int, Field(ge=0, le=WINDOW), Setting("In a row, to keep calls from an engine; 0: never.")
    ] = _BREAKER.failures
    """Of calls in a row, after which an engine gets none for a moment; half of the last 20 do it as
    well. 0 sends them always."""
    slow_start_seconds: Annotated[
        SecondsOrZero, Setting("Seconds: for an engine that comes back.", "--slow-start")
    ] = _BREAKER.slow_start_seconds
    """Until an engine that comes back has its full share of the calls."""
    frozen_seconds: Annotated[
        SecondsOrZero,
        Setting(
            "Seconds: of silence, for engines that do nothing else; 0: never.", "--frozen-after"
        ),
    ] = 10.0
    """Of silence on all legs of an engine, to which comes what its pace makes plausible, after
    which one that does nothing else either is given up; 0 waits as long as timeouts say."""


Health = HealthSection
"""The name of before, for programs that build settings themselves."""


class DrainingSection(Section, panel=LIMITS, on_reload=OnReload.DRAIN):
    """How the gateway ends: new calls are refused, those that run go on."""

    grace_seconds: Annotated[
        Seconds, Setting("Seconds: for running calls, at the end.", "--drain-seconds")
    ] = 30.0
    """For calls that run; then they are cut."""
    notice_seconds: Annotated[
        SecondsOrZero, Setting("Seconds: refuse calls at least, at the end.", "--drain-notice")
    ] = 0.0
    """How long new calls are refused at least, so that who routes them notices."""


class EngineMetricsSection(Section, panel=LIMITS):
    """How often engines are asked what they counted and how busy they are."""

    interval_seconds: Annotated[
        SecondsOrZero,
        Setting(
            "Seconds: between looks at engines' metrics; 0: none.", "--engine-metrics-interval"
        ),
    ] = 5.0
    """0 for never: nothing is verified then, and no engine's load is known."""
    timeout_seconds: Annotated[
        Seconds, Setting("Seconds: for such a look.", "--engine-metrics-timeout")
    ] = 2.0
    """How long one may take to tell."""


EngineMetrics = EngineMetricsSection
"""The name of before, for programs that build settings themselves."""


class TlsSection(Section, panel=SECURITY):
    """https instead of http for clients."""

    cert_file: Annotated[
        str, Setting("Speak https, with the certificate in this PEM file.", "--tls-cert-file")
    ] = ""
    """PEM, ours first and those that signed it after; empty for http."""
    key_file: Annotated[str, Setting("The key of that certificate.", "--tls-key-file")] = ""
    """PEM, not encrypted; empty if it is in cert_file."""
    client_ca_file: Annotated[
        str, Setting("Serve only clients with a certificate of these.", "--tls-client-ca-file")
    ] = ""
    """Only clients with a certificate that one of these signed are served."""


class EngineTlsSection(Section, panel=SECURITY):
    """TLS to engines with https URLs."""

    ca_file: Annotated[
        str, Setting("Who signed the certificates of engines.", "--engine-ca-file")
    ] = ""
    """Who may have signed their certificates, instead of the system's authorities."""
    cert_file: Annotated[
        str, Setting("The certificate that engines are shown.", "--engine-cert-file")
    ] = ""
    """What engines are shown that ask for a certificate; with those that signed it."""
    key_file: Annotated[str, Setting("The key of that certificate.", "--engine-cert-key-file")] = ""
    """Empty if it is in cert_file."""
    server_name: Annotated[
        str, Setting("The name in the certificates of engines.", "--engine-server-name")
    ] = ""
    """The name in their certificates, where it is not the host of the URL."""


class DisaggregationSection(Section, panel=SCHEDULING, on_reload=OnReload.RULE):
    """Which calls are split over a prefill and a decode engine."""

    rule: Annotated[
        Literal["always", "never", "uncached_tokens_above", "auto"],
        Setting("Which calls are split over two engines.", "--disaggregate"),
    ] = "always"
    """uncached_tokens_above splits calls with long prompts while prefill is free; auto takes the
    way that keeps callers waiting for less."""
    uncached_tokens: Annotated[int, Field(ge=0), Setting("Longer prompts are split.")] = 1000
    """Longer prompts are split (estimated from the body's size)."""
    max_prefill_calls: Annotated[Count, Setting("And only while prefill has fewer calls.")] = 2
    """Only while fewer calls are at the prefill engine."""


class AdmissionSection(Section, panel=LIMITS):
    """How many calls may be with the engines; the others wait here. Nothing is limited by default."""

    prefill_concurrency: Annotated[
        Count | None, Setting("Calls at one prefill engine; others wait.")
    ] = None
    """At one prefill engine at a time."""
    decode_concurrency: Annotated[
        Count | None, Setting("Calls at one decode engine; others wait.")
    ] = None
    """At one decode or plain engine at a time, counted from the call's start."""
    kv_free: Annotated[
        Annotated[float, Field(gt=0, lt=1)] | None,
        Setting("Share of decode's KV pages without which calls wait.", "--min-kv-free"),
    ] = None
    """Share of its KV pages below which a decode engine begins no call."""
    prefill_seconds: Annotated[
        SecondsOrZero | None,
        Setting("Seconds of reading at each; others wait.", "--prefill-queue", "by the targets"),
    ] = None
    """What a prefill engine may have to read, in seconds. While all have more, calls wait in the
    gateway, and those that can still be in time (targets.ttft_seconds) go before those that are late. Unless it is set, it is a
    fifth of targets.ttft_seconds where a target and no limit is set, and prefill_policy is slo; 0 for calls to wait at engines."""
    late_share: Annotated[
        Annotated[float, Field(ge=0, le=1)], Setting("Of reading, for late calls.")
    ] = 0.05
    """With prefill_seconds: of the time for which prompts are read that begin, what is for late calls while
    others wait that can be in time."""
    waiting: Annotated[
        Count | None, Setting("Calls that may wait for a model.", "--max-waiting", "1000")
    ] = None
    """Calls that may wait for one model; others get 429. Unless it is set, 1000; as many as come where they wait for a target alone."""
    wait_seconds: Annotated[
        Seconds | None, Setting("Seconds that one may wait.", "--max-wait", "30")
    ] = None
    """The longest that one may wait. Unless it is set, 30; without end where calls wait for a target alone."""
    ttft_seconds: Annotated[
        Seconds | None, Setting("Seconds: refuse what is later.", "--max-ttft")
    ] = None
    """A call whose prompt is expected to be read later than that gets 429 at once."""
    give_way: Annotated[
        Annotated[int, Field(ge=0, le=100)], Setting("Times that a low call may, for urgent ones.")
    ] = 0
    """How often a running call that is less urgent than ordinary ends for one that would be late, and goes on later;
    0 for never. Where no limit is set, calls wait while each prefill engine has a fifth of targets.ttft_seconds to read."""


class TargetsSection(Section, panel=SCHEDULING, on_reload=OnReload.TARGETS):
    """What callers should get, for the policies that weigh engines by it. Nothing is refused. With the policy slo, calls wait
    in the gateway for a target that is set here (admission.prefill_seconds)."""

    ttft_seconds: Annotated[
        Seconds | None, Setting("Of a call; calls wait for it.", "--ttft-target", "5")
    ] = None
    """Until the first token. Unless it is set, policies take it for 5."""
    tpot_seconds: Annotated[
        Seconds | None, Setting("Of a token; calls wait for it.", "--tpot-target", "0.1")
    ] = None
    """Between two tokens after it. Unless it is set, policies take it for 0.1."""


class PrefixIndexSection(Section, panel=LIMITS):
    """What engines have cached, where a policy asks for it (prefix_then_load, for one)."""

    max_bytes: Annotated[int, Field(ge=1 << 20), Setting("Of memory.", "--prefix-index-bytes")] = (
        256 << 20
    )
    """Memory for it, in each process."""
    kv_tokens: Annotated[Count | None, Setting("In an engine's KV cache.", panel=SCHEDULING)] = None
    """That an engine's KV cache holds, where the engine does not say so itself."""
    host_price: Annotated[
        float,
        Field(ge=0, le=1),
        Setting("Of a token in the host's memory.", "--kv-host-price", panel=SCHEDULING),
    ] = 0.1
    """What a prompt's token costs that an engine has in its host's memory and not in its pages, as a share of
    computing it. Engines tell of it by KV events."""
    disk_price: Annotated[
        float,
        Field(ge=0, le=1),
        Setting("Of a token on disk.", "--kv-disk-price", panel=SCHEDULING),
    ] = 0.4
    """The same of a disk, and of what lies further away."""


class KvEventsSection(Section, panel=ENGINES):
    """What engines publish of their KV caches over ZeroMQ, as vLLM does."""

    endpoint: Annotated[KvEndpoint, Setting("ask, or tcp://{host}:5557.", "--kv-events")] = ""
    """Where: ask (each engine, at /kv_event_sources), or one for all engines, like
    tcp://{host}:5557, with the port of rank 0; nothing is listened to by default."""
    replay_endpoint: Annotated[KvEndpoint, Setting("tcp://{host}:port.", "--kv-events-replay")] = ""
    """Where what was missed is repeated, unless engines are asked."""
    topic: Annotated[str, Setting("As engines are told.", "--kv-events-topic")] = ""
    """That batches are marked with, unless engines are asked."""
    secret_file: Annotated[
        str, Setting("The fleet's, where engines publish for members.", "--kv-events-secret-file")
    ] = ""
    """Secrets of the fleet, one a line, for engines that publish for its members alone and say so
    when they are asked (pdgate engine with a KV secret)."""
    tokenize: Annotated[
        bool, Setting("Ask engines for the tokens of texts.", "--kv-events-tokenize")
    ] = True
    """Engines are asked (at /tokenize) for the tokens of prompts that come as text."""


class CallbacksSection(Section, panel=ENGINES):
    """Ports on which engines say what calls wait for, where their protocol has it so."""

    metaserver: Annotated[
        Listener, Setting("host:port where decode says where its blocks are.", "--metaserver")
    ] = ""
    """host:port where decode says where its blocks are (ascend-layerwise), as engines reach it; port 0, a free one
    for each worker, at the address that clients use, unless it is named."""
    notifications: Annotated[
        Listener, Setting("host:port where prefill says that KV was pushed.", "--kv-notifications")
    ] = ""
    """host:port where prefill says that KV was pushed (lmcache: pd_proxy_host, pd_proxy_port); port 7500 of the address that
    clients use, unless it is named."""
    allow: Annotated[
        Networks, Setting("Networks that may call back, between commas.", "--callbacks-from")
    ] = ""
    """Networks that callbacks may come from, as 10.0.0.0/8 between commas; this machine's own addresses alone by default."""


class TracingSection(Section, panel=INSIGHT):
    """One trace for each call, sent to an OpenTelemetry collector (extra `otel`)."""

    endpoint: Annotated[
        OtlpEndpoint,
        Setting("URL of a collector for traces, like http://host:4318.", "--otlp-endpoint"),
    ] = ""
    """URL of its OTLP/HTTP receiver, to which /v1/traces and /v1/metrics are added; empty for
    none."""
    sample_ratio: Annotated[
        float, Field(ge=0, le=1), Setting("Share of calls.", "--trace-sample")
    ] = 1.0
    """Share of the calls whose clients do not say themselves whether they are sampled
    (traceparent)."""
    service_name: Annotated[
        str, Field(min_length=1), Setting("Name in traces.", "--trace-service")
    ] = "pdgate"
    """That the traces are of."""
    headers_file: Annotated[
        OtlpHeadersFile, Setting("Lines of name: value for the collector.", "--otlp-headers-file")
    ] = ""
    """Lines of `name: value` that the collector is sent, a token for one."""


class Batch(Section, panel=LIMITS):
    """OpenAI's Batch API: files of calls that are served while others leave room."""

    folder: Annotated[
        str, Setting("Serve /v1/batches, with state and files here.", "--batch-folder")
    ] = ""
    """Folder for the state and the files of batches; without one there is no Batch API."""
    storage: Annotated[
        str, Setting("URL for their files: s3://bucket/folder.", "--batch-storage")
    ] = ""
    """URL of fsspec's for the contents of files, as s3://bucket/folder; in the folder without one."""
    state: Annotated[
        RedisUrl, Setting("URL of a Redis in which replicas share batches.", "--batch-state")
    ] = ""
    """URL of the Redis in which gateways on several hosts share batches; needs `batch.storage`. SQLite in the folder without one."""
    concurrency: Annotated[Count, Setting("Lines under way at once.", "--batch-concurrency")] = 16
    """Lines under way at once, of all batches together."""
    max_file_bytes: Annotated[Count, Setting("Of a file.", "--batch-max-file-bytes")] = 200 << 20
    max_lines: Annotated[Count, Setting("Of a batch.", "--batch-max-lines")] = 50_000
    max_unfinished: Annotated[
        Count, Setting("Batches of a key that are not finished.", "--batch-max-unfinished")
    ] = 20
    """Batches of one API key that are not finished; another one gets 429."""
    max_stored_bytes: Annotated[
        Count, Setting("Of all files of a key.", "--batch-max-stored-bytes")
    ] = 10 << 30
    """Of all files of one API key."""
    keep_days: Annotated[Count, Setting("Until files are deleted.", "--batch-keep-days")] = 30
    """Until files are deleted, unless their owner says less, and batches are forgotten."""


class EngineControlSection(Section, panel=LIMITS):
    """Routes by which trainers and operators pause engines, change their weights, and let them sleep."""

    enabled: Annotated[
        bool, Setting("Serve /pause, /update_weights and the like, and /workers.", "--control")
    ] = False
    """Serves /pause, /update_weights and the like, and /workers, for who knows the admin token."""
    engine_seconds: Annotated[
        Seconds, Setting("Seconds: for an engine's answer.", "--control-timeout")
    ] = 600.0
    """For an engine's answer."""
    quiet_seconds: Annotated[
        Seconds, Setting("Seconds: for calls that run, to end.", "--control-quiet")
    ] = 300.0
    """For calls that run to end before weights change; nothing is changed if they do not."""
    wait_seconds: Annotated[
        Seconds, Setting("Seconds: of a call that is held.", "--control-wait")
    ] = 120.0
    """The longest that a call waits while its engines are held; then it gets 503."""
    waiting: Annotated[Count, Setting("Calls that may be held.", "--control-waiting")] = 1000
    """Calls that may wait in one process; others get 503."""
    max_body_bytes: Annotated[Count, Setting("Of a request.", "--control-max-body-bytes")] = (
        64 << 20
    )
    """Of a request for engines, which each of them is sent."""


class AdaptiveSection(Section, panel=SCHEDULING):
    """Engines with role both serve the side that needs them more (prefill or decode)."""

    enabled: Annotated[
        bool, Setting("Turn engines with role both to where they help.", "--adaptive")
    ] = False
    """Otherwise they serve both, all the time."""
    period_seconds: Annotated[Seconds, Setting("Seconds: a turn.", "--adaptive-period")] = 5.0
    """Between two changes, at least."""
    stay_seconds: Annotated[Seconds, Setting("Seconds: a side.", "--adaptive-stay")] = 60.0
    """How long an engine serves a side before it goes back, at least."""


class ShareEntry(Section):
    """Calls for one model that others serve, each by its share.

    Attributes:
        model: That clients ask for.
        to: Model -> its weight; a conversation stays with one of them.
        by: key keeps all calls of an API key with one of them.
    """

    model: Annotated[str, Field(min_length=1)]
    to: dict[str, Annotated[int, Field(ge=1, le=1_000_000)]]
    by: Literal["conversation", "key"] = "conversation"
