"""The tree of configuration keys, their types and defaults.

It is frozen, and JSON brings it to the workers and back unchanged:
`Settings.model_validate_json(settings.model_dump_json()) == settings`.
"""

from collections import Counter
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, model_validator

from pdgate.cluster import address, trust
from pdgate.cluster.etcd import login as etcd_login
from pdgate.forwarders.base import Mode
from pdgate.forwarders.retrying import OnPrefillFailure
from pdgate.gateway.config.api_keys import ApiKeyEntry
from pdgate.gateway.config.instances import InstanceEntry, host_and_port, records
from pdgate.gateway.config.sections import (
    Adaptive,
    Admission,
    Count,
    Disaggregation,
    Draining,
    EngineMetrics,
    EngineTls,
    Health,
    KvEvents,
    Listen,
    ModelEntry,
    PrefixIndex,
    Seconds,
    Section,
    Targets,
    Timeouts,
    Tls,
    Tracing,
)
from pdgate.gateway.security.cors import origins_of
from pdgate.gateway.security.headers import names
from pdgate.protocols.instance import Instance
from pdgate.scheduling import policy


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
        console: Serves /console where admin_token_file is given.
        passthrough: Routes of /v1 that the gateway does not know pass, as they come, to an engine of
            the model that a JSON body, a form or ?model= names.
        debug_routes: Serves GET /debug/calls/{request id}.
        debug_headers: Tells clients which instances answered.
        log_format: Of lines on stderr: text for people, json for machines.
        call_log: One line for each call.
        log_prompts: The call log shows what was asked.
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
    prefill_policy: str = policy.DEFAULT
    decode_policy: str = policy.DEFAULT
    plain_policy: str = policy.DEFAULT
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
    console: bool = True
    passthrough: bool = False
    debug_routes: bool = False
    debug_headers: bool = False
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    call_log: bool = False
    log_prompts: bool = False
    tracing: Tracing = Tracing()

    @property
    def fleet(self) -> tuple[Instance, ...]:
        """The engines, with ids, protocols and generations filled in."""
        return records(self.instances, self.protocol_of, self.generation)

    @property
    def aliases(self) -> dict[str, str]:
        """Other names of models -> their own."""
        return {alias: model.name for model in self.models for alias in model.aliases}

    @model_validator(mode="after")
    def _every_instance_is_one_of_a_kind(self) -> Self:
        records(self.instances, self.protocol_of, self.generation)
        return self

    @model_validator(mode="after")
    def _every_name_of_a_model_means_one(self) -> Self:
        own = Counter(model.name for model in self.models)
        if doubles := [name for name, times in own.items() if times > 1]:
            raise ValueError(f"several models have the name {doubles[0]!r}")
        names = Counter(alias for model in self.models for alias in model.aliases) + own
        if doubles := [name for name, times in names.items() if times > 1]:
            raise ValueError(
                f"the alias {doubles[0]!r} is also another name, so it is not clear which"
            )
        return self

    def protocol_of(self, model: str) -> str:
        """What an instance of the model speaks that does not say so; "" for any model."""
        for entry in self.models:
            if model and entry.name == model and entry.pdd_protocol:
                return entry.pdd_protocol
        return self.pdd_protocol

    def generation(self, protocol: str) -> str:
        """What an instance that names no generation speaks; empty to find it out."""
        match protocol:
            case "vllm-mooncake" if self.mooncake_generation != "auto":
                return self.mooncake_generation
            case "neuron":
                return self.neuron_generation
            case _:
                return ""
