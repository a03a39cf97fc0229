"""The tree of configuration keys, their types and defaults.

It is frozen, and JSON brings it to the workers and back unchanged:
`Settings.model_validate_json(settings.model_dump_json()) == settings`.
"""

from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from pdgate.cluster import address, trust
from pdgate.cluster.etcd import login as etcd_login
from pdgate.forwarders.base import Mode
from pdgate.forwarders.retrying import OnPrefillFailure
from pdgate.gateway.config.api_keys import ApiKeyEntry
from pdgate.gateway.config.instances import HIGHEST_PORT, InstanceEntry, host_and_port, records
from pdgate.gateway.kv_events.sources import check_template
from pdgate.gateway.security.cors import origins_of
from pdgate.gateway.security.headers import names
from pdgate.protocols.instance import Instance
from pdgate.scheduling.health.breaker import WINDOW

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]

DEFAULT_POLICY = "least_loaded"


def _etcd(text: str) -> str:
    """Raises ValueError."""
    return ",".join(address.endpoints(text)) if text else text


def _etcd_user(path: str) -> str:
    """Raises ValueError."""
    etcd_login.read(path)
    return path


def _etcd_ca(path: str) -> str:
    """Raises ValueError."""
    trust.check_ca(path)
    return path


def _redis(text: str) -> str:
    """Raises ValueError, without the secrets that a URL may hold."""
    if text and (urlsplit(text).scheme not in ("redis", "rediss") or not urlsplit(text).netloc):
        raise ValueError("it is not a URL like redis://host:port/number")
    return text


def _header_names(text: str) -> str:
    """Raises ValueError."""
    names(text)
    return text


def _origins(text: str) -> str:
    """Raises ValueError."""
    origins_of(text)
    return text


def _listener(text: str) -> str:
    """Raises ValueError."""
    if text:
        host_and_port(text)
    return text


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Listen(Section):
    """Where clients find us. Port 0 takes a free one."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=HIGHEST_PORT)] = 8000
    workers: Count = 1


class Timeouts(Section):
    """How long an engine may take.

    Attributes:
        connect_seconds: Until it accepts a connection.
        prefill_seconds: Until prefill has answered in full.
        first_byte_seconds: Until decode's status line.
        kv_wait_seconds: The same where prefill has read the prompt, so that decode has only to
            take the KV over; as first_byte_seconds unless it is given.
        idle_seconds: Between two pieces of decode's answer.
        ping_seconds: Of silence in a stream, after which a comment keeps the client's connection
            alive; 0 sends none.
        retry_seconds: From a call's arrival; no further attempt begins later.
        total_seconds: From a call's arrival to its end, however well it goes; no limit by default.
    """

    connect_seconds: Seconds = 5.0
    prefill_seconds: Seconds = 600.0
    first_byte_seconds: Seconds = 600.0
    kv_wait_seconds: Seconds | None = None
    idle_seconds: Seconds = 300.0
    ping_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 15.0
    retry_seconds: Seconds = 600.0
    total_seconds: Seconds | None = None


class ModelEntry(Section):
    """What is different for one model.

    Attributes:
        name: As calls name it.
        prefill_seconds: Until prefill has answered in full.
        first_byte_seconds: Until decode's status line.
        kv_wait_seconds: The same where prefill has read the prompt.
        idle_seconds: Between two pieces of decode's answer.
        total_seconds: From a call's arrival to its end.
    """

    name: Annotated[str, Field(min_length=1)]
    prefill_seconds: Seconds | None = None
    first_byte_seconds: Seconds | None = None
    kv_wait_seconds: Seconds | None = None
    idle_seconds: Seconds | None = None
    total_seconds: Seconds | None = None


class Health(Section):
    """How often engines are asked whether they are well, and when they get no calls.

    Attributes:
        retry_seconds: Between questions while it is not well.
        max_failures: Of calls in a row, after which an engine gets none for a moment; half of the
            last 20 do it as well. 0 sends them always.
        slow_start_seconds: Until an engine that comes back has its full share of the calls.
    """

    interval_seconds: Seconds = 1.0
    timeout_seconds: Seconds = 2.0
    retry_seconds: Seconds = 0.5
    max_failures: Annotated[int, Field(ge=0, le=WINDOW)] = 3
    slow_start_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 5.0


class Draining(Section):
    """How the gateway ends: new calls are refused, those that run go on.

    Attributes:
        grace_seconds: For calls that run; then they are cut.
        notice_seconds: How long new calls are refused at least, so that who routes them notices.
    """

    grace_seconds: Seconds = 30.0
    notice_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


class EngineMetrics(Section):
    """How often engines are asked what they counted and how busy they are.

    Attributes:
        interval_seconds: 0 for never: nothing is verified then, and no engine's load is known.
        timeout_seconds: How long one may take to tell.
    """

    interval_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 5.0
    timeout_seconds: Seconds = 2.0


class Tls(Section):
    """https instead of http for clients.

    Attributes:
        cert_file: PEM, ours first and those that signed it after; empty for http.
        key_file: PEM, not encrypted; empty if it is in cert_file.
        client_ca_file: Only clients with a certificate that one of these signed are served.
    """

    cert_file: str = ""
    key_file: str = ""
    client_ca_file: str = ""


class EngineTls(Section):
    """For engines with https URLs.

    Attributes:
        ca_file: Who may have signed their certificates, instead of the system's authorities.
        cert_file: What engines are shown that ask for a certificate; with those that signed it.
        key_file: Empty if it is in cert_file.
        server_name: The name in their certificates, where it is not the host of the URL.
    """

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""


class Disaggregation(Section):
    """Which calls are split over a prefill and a decode engine.

    Attributes:
        rule: uncached_tokens_above splits calls with long prompts while prefill is free; auto
            takes the way that keeps callers waiting for less.
        uncached_tokens: Longer prompts are split (estimated from the body's size).
        max_prefill_calls: Only while fewer calls are at the prefill engine.
    """

    rule: Literal["always", "never", "uncached_tokens_above", "auto"] = "always"
    uncached_tokens: Annotated[int, Field(ge=0)] = 1000
    max_prefill_calls: Count = 2


class Admission(Section):
    """How many calls may be with the engines; the others wait here. Nothing is limited by default.

    Attributes:
        prefill_concurrency: At one prefill engine at a time.
        decode_concurrency: At one decode or plain engine at a time, counted from the call's start.
        kv_free: Share of its KV pages below which a decode engine begins no call.
        waiting: Calls that may wait for one model; others get 429.
        wait_seconds: The longest that one may wait.
        ttft_seconds: A call whose prompt is expected to be read later than that gets 429 at once.
    """

    prefill_concurrency: Count | None = None
    decode_concurrency: Count | None = None
    kv_free: Annotated[float, Field(gt=0, lt=1)] | None = None
    waiting: Count = 1000
    wait_seconds: Seconds = 30.0
    ttft_seconds: Seconds | None = None


class Targets(Section):
    """What callers should get, for the policies that weigh engines by it. Nothing is refused.

    Attributes:
        ttft_seconds: Until the first token.
        tpot_seconds: Between two tokens after it.
    """

    ttft_seconds: Seconds = 5.0
    tpot_seconds: Seconds = 0.1


class PrefixIndex(Section):
    """What engines have cached, where a policy asks for it (prefix_then_load, for one).

    Attributes:
        max_bytes: Memory for it, in each process.
        kv_tokens: That an engine's KV cache holds, where the engine does not say so itself.
    """

    max_bytes: Annotated[int, Field(ge=1 << 20)] = 256 << 20
    kv_tokens: Count | None = None


class KvEvents(Section):
    """What engines publish of their KV caches over ZeroMQ, as vLLM does.

    Attributes:
        endpoint: Where: ask (each engine, at /kv_event_sources), or one for all engines, like
            tcp://{host}:5557, with the port of rank 0; nothing is listened to by default.
        replay_endpoint: Where what was missed is repeated, unless engines are asked.
        topic: That batches are marked with, unless engines are asked.
        tokenize: Engines are asked (at /tokenize) for the tokens of prompts that come as text.
    """

    endpoint: Annotated[str, AfterValidator(check_template)] = ""
    replay_endpoint: Annotated[str, AfterValidator(check_template)] = ""
    topic: str = ""
    tokenize: bool = True


class Adaptive(Section):
    """Engines with role both serve the side that needs them more (prefill or decode).

    Attributes:
        enabled: Otherwise they serve both, all the time.
        period_seconds: Between two changes, at least.
        stay_seconds: How long an engine serves a side before it goes back, at least.
    """

    enabled: bool = False
    period_seconds: Seconds = 5.0
    stay_seconds: Seconds = 60.0


class Settings(Section):
    """Everything that the gateway is told.

    Attributes:
        directory: Where engines are found, by the name of what a package declares: etcd, redis, file,
            dns, kubernetes and others.
        directory_options: What it needs to know, each as name=value.
        etcd: URLs of etcd's members, between commas; engines announce themselves there.
        etcd_user_file: File with name:password, where etcd asks for one.
        etcd_ca_file: Certificates (PEM) that vouch for etcd, where the usual ones do not.
        state_dir: Folder for what the directory told last, for a start while it is away.
        redis: URL of the Redis in which replicas share what is changed while they run, and their
            load.
        pdd_protocol: For instances that name none.
        scheduling_mode: None takes what each protocol prefers: batch if it can.
        mooncake_generation: For vllm-mooncake instances that name none.
        neuron_generation: For neuron instances that name none. zmq names the peer in the
            request id, static sends the ids that a fixed pair of engines expects, nixl is
            the successor stack, which asks prefill first.
        trust_client_kv_params: Passes a client's own kv_transfer_params to the engines.
            They pick whom an engine dials and can kill it.
        max_attempts: Engines tried for one call before its first byte.
        resume: An answer that has begun and breaks off goes on at another engine, as often as
            max_attempts.
        on_prefill_failure: retry asks another prefill engine, recompute has a decode engine
            read the prompt, fail does neither. retry_then_recompute also serves calls while
            no prefill engine is up.
        kv_lease_seconds: How long prefill engines keep KV, where that was changed on them
            (kv_lease_duration of NixlConnector); else what the protocol says.
        api_keys_file: A TOML file with more tables [[api_keys]], and nothing else.
        client_authorization: What becomes of the client's header: drop, pass to engines, or
            replace by engine_key_file's. None: replace if there is such a file, else drop if
            there are api_keys, else pass.
        engine_key_file: A file with the key that engines ask for (vLLM's --api-key).
        forward_headers: More headers of clients that engines get; names between commas.
        return_headers: More headers of engines that clients get; names between commas.
        cors_origins: Web pages that may call from browsers, as https://example.com between commas;
            * for all.
        admin_token_file: Serves /admin/... for who knows the token in this file.
        admin_listen: host:port of a listener of their own for /admin/... and /debug/...; empty
            for the one that clients use.
        metrics_on: both, or only the admin listener.
        debug_routes: Serves GET /debug/calls/{request id}.
        debug_headers: Tells clients which instances answered.
        call_log: One line for each call.
    """

    listen: Listen = Listen()
    instances: tuple[InstanceEntry, ...] = ()
    etcd: Annotated[str, AfterValidator(_etcd)] = ""
    etcd_user_file: Annotated[str, AfterValidator(_etcd_user)] = ""
    etcd_ca_file: Annotated[str, AfterValidator(_etcd_ca)] = ""
    directory: str = ""
    directory_options: tuple[str, ...] = ()
    state_dir: str = ""
    redis: Annotated[str, AfterValidator(_redis)] = ""
    pdd_protocol: str = "vllm-nixl"
    scheduling_mode: Mode | None = None
    mooncake_generation: Literal["auto", "a", "b", "c", "d"] = "auto"
    neuron_generation: Literal["zmq", "static", "nixl"] = "zmq"
    disaggregation: Disaggregation = Disaggregation()
    admission: Admission = Admission()
    prefill_policy: str = DEFAULT_POLICY
    decode_policy: str = DEFAULT_POLICY
    plain_policy: str = DEFAULT_POLICY
    targets: Targets = Targets()
    adaptive: Adaptive = Adaptive()
    prefix_index: PrefixIndex = PrefixIndex()
    kv_events: KvEvents = KvEvents()
    trust_client_kv_params: bool = False
    max_body_bytes: Count = 256 << 20
    max_attempts: Count = 3
    resume: bool = False
    on_prefill_failure: OnPrefillFailure = OnPrefillFailure.RETRY_THEN_RECOMPUTE
    kv_lease_seconds: Seconds | None = None
    timeouts: Timeouts = Timeouts()
    models: tuple[ModelEntry, ...] = ()
    health: Health = Health()
    drain: Draining = Draining()
    engine_metrics: EngineMetrics = EngineMetrics()
    api_keys: tuple[ApiKeyEntry, ...] = ()
    api_keys_file: str = ""
    tls: Tls = Tls()
    engine_tls: EngineTls = EngineTls()
    client_authorization: Literal["drop", "pass", "replace"] | None = None
    engine_key_file: str = ""
    forward_headers: Annotated[str, AfterValidator(_header_names)] = ""
    return_headers: Annotated[str, AfterValidator(_header_names)] = ""
    cors_origins: Annotated[str, AfterValidator(_origins)] = ""
    admin_token_file: str = ""
    admin_listen: Annotated[str, AfterValidator(_listener)] = ""
    metrics_on: Literal["both", "admin"] = "both"
    debug_routes: bool = False
    debug_headers: bool = False
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    call_log: bool = False

    @property
    def fleet(self) -> tuple[Instance, ...]:
        """The engines, with ids, protocols and generations filled in."""
        return records(self.instances, self.pdd_protocol, self.generation)

    @model_validator(mode="after")
    def _every_instance_is_one_of_a_kind(self) -> Self:
        records(self.instances, self.pdd_protocol, self.generation)
        return self

    def generation(self, protocol: str) -> str:
        """What an instance that names no generation speaks; empty to find it out."""
        match protocol:
            case "vllm-mooncake" if self.mooncake_generation != "auto":
                return self.mooncake_generation
            case "neuron":
                return self.neuron_generation
            case _:
                return ""
