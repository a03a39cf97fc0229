"""The tree of settings. Each is declared once, here or in sections.py (setting.py says how).

It is frozen, and JSON brings it to the workers and back unchanged:
`Settings.model_validate_json(settings.model_dump_json()) == settings`.
"""

from collections import Counter
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pdgate.forwarders.choices import Mode, OnPrefillFailure
from pdgate.gateway.config.api_keys import ApiKeyEntry
from pdgate.gateway.config.instances import InstanceEntry, records
from pdgate.gateway.config.jwt import JwtSection
from pdgate.gateway.config.sections import (
    AdaptiveSection,
    AdmissionSection,
    Batch,
    CallbacksSection,
    DisaggregationSection,
    DrainingSection,
    EngineControlSection,
    EngineMetricsSection,
    EngineTlsSection,
    HealthSection,
    KvEventsSection,
    ListenSection,
    ModelEntry,
    PickerSection,
    PrefixIndexSection,
    ShareEntry,
    TargetsSection,
    TimeoutsSection,
    TlsSection,
    TracingSection,
)
from pdgate.gateway.config.setting import (
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
    EtcdCaFile,
    EtcdUrls,
    EtcdUserFile,
    HeaderNames,
    Listener,
    Origins,
    RedisUrl,
    Seconds,
)
from pdgate.protocols.instance import Instance
from pdgate.scheduling import DEFAULT_POLICY


class Settings(Section):
    """All settings of the gateway, in the order of `pdgate serve --help`."""

    listen: ListenSection = Field(default_factory=ListenSection)
    epp: PickerSection = Field(default_factory=PickerSection)
    instances: Annotated[
        tuple[InstanceEntry, ...],
        Setting("The engines.", flag=None, panel=ENGINES, on_reload=OnReload.FLEET),
    ] = ()
    directory: Annotated[
        str, Setting("Where engines are found: etcd, redis, file, dns, ...", panel=ENGINES)
    ] = ""
    """Where engines are found, by the name of what a package declares: etcd, redis, file, dns,
    kubernetes and others."""
    directory_options: Annotated[
        tuple[str, ...], Setting("Its name=value; repeat it.", "--directory-option", panel=ENGINES)
    ] = ()
    """What it needs to know, each as name=value."""
    etcd: Annotated[
        EtcdUrls, Setting("URL of the etcd that engines announce themselves in.", panel=ENGINES)
    ] = ""
    """URLs of etcd's members, between commas; engines announce themselves there."""
    etcd_user_file: Annotated[
        EtcdUserFile, Setting("File with name:password, where etcd asks for one.", panel=ENGINES)
    ] = ""
    etcd_ca_file: Annotated[
        EtcdCaFile, Setting("Certificates (PEM) that vouch for an etcd at https://.", panel=ENGINES)
    ] = ""
    """Certificates (PEM) that vouch for etcd, where the usual ones do not."""
    state_dir: Annotated[
        str,
        Setting(
            "Folder for what the directory told last, for a start while it is away.", panel=ENGINES
        ),
    ] = ""
    redis: Annotated[
        RedisUrl,
        Setting("URL of the Redis in which replicas share load and thresholds.", panel=SCHEDULING),
    ] = ""
    """URL of the Redis in which replicas share what is changed while they run, and their load."""
    pdd_protocol: Annotated[
        str,
        Setting(
            "For engines that name none; see pdgate protocols.",
            panel=ENGINES,
            on_reload=OnReload.FLEET,
        ),
    ] = "vllm-nixl"
    """For instances that name none."""
    mooncake_generation: Annotated[
        Literal["auto", "a", "b", "c", "d"],
        Setting("For vllm-mooncake engines.", panel=ENGINES, on_reload=OnReload.FLEET),
    ] = "auto"
    """For vllm-mooncake instances that name none."""
    neuron_generation: Annotated[
        Literal["zmq", "static", "nixl"],
        Setting("For neuron engines.", panel=ENGINES, on_reload=OnReload.FLEET),
    ] = "zmq"
    """For neuron instances that name none. zmq names the peer in the request id, static sends the
    ids that a fixed pair of engines expects, nixl is the successor stack, which asks prefill
    first."""
    scheduling_mode: Annotated[
        Mode | None,
        Setting(
            "batch chooses both engines at once.",
            default="batch if it can",
            panel=SCHEDULING,
            on_reload=OnReload.FLEET,
        ),
    ] = None
    """None takes what each protocol prefers: batch if it can."""
    disaggregation: DisaggregationSection = Field(default_factory=DisaggregationSection)
    prefill_policy: Annotated[
        str, Setting("Chooses prefill engines.", panel=SCHEDULING, on_reload=OnReload.POLICIES)
    ] = DEFAULT_POLICY
    decode_policy: Annotated[
        str, Setting("Chooses decode engines.", panel=SCHEDULING, on_reload=OnReload.POLICIES)
    ] = DEFAULT_POLICY
    plain_policy: Annotated[
        str, Setting("Chooses plain engines.", panel=SCHEDULING, on_reload=OnReload.POLICIES)
    ] = DEFAULT_POLICY
    targets: TargetsSection = Field(default_factory=TargetsSection)
    prefix_index: PrefixIndexSection = Field(default_factory=PrefixIndexSection)
    kv_events: KvEventsSection = Field(default_factory=KvEventsSection)
    callbacks: CallbacksSection = Field(default_factory=CallbacksSection)
    adaptive: AdaptiveSection = Field(default_factory=AdaptiveSection)
    admission: AdmissionSection = Field(default_factory=AdmissionSection)
    batch: Batch = Field(default_factory=Batch)
    control: EngineControlSection = Field(default_factory=EngineControlSection)
    trust_client_kv_params: Annotated[
        bool,
        Setting("Let clients choose whom engines dial.", panel=LIMITS, on_reload=OnReload.INTAKE),
    ] = False
    """Passes a client's own kv_transfer_params to the engines. They pick whom an engine dials and
    can kill it."""
    trust_endpoint_headers: Annotated[
        bool,
        Setting(
            "Obey headers in which an endpoint picker names engines.",
            panel=SECURITY,
            on_reload=OnReload.INTAKE,
        ),
    ] = False
    """Calls go to the engines that x-gateway-destination-endpoint and x-prefiller-host-port name, if they
    are of this gateway. For a gateway that only a data plane with an endpoint picker can reach."""
    max_body_bytes: Annotated[
        Count, Setting("Of a request.", panel=LIMITS, on_reload=OnReload.INTAKE)
    ] = 16 << 20
    # The costliest JSON takes 2.7 ms a MiB, in which no other thread runs either (the decoder does not let
    # go of the interpreter): 43 ms, and no callback may take 50.
    max_memory_bytes: Annotated[
        Count | None,
        Setting(
            "Bytes of all processes; else half of what there is.", "--max-memory", panel=LIMITS
        ),
    ] = None
    """Of all processes of this gateway together; half of the machine's, or of what its cgroup may
    have, unless it is given. Beyond it bodies are refused (503)."""
    max_attempts: Annotated[
        Count, Setting("Before the first byte.", panel=LIMITS, on_reload=OnReload.TIMES)
    ] = 3
    """Engines tried for one call before its first byte."""
    resume: Annotated[
        bool,
        Setting(
            "Go on with broken streams at another engine.", panel=LIMITS, on_reload=OnReload.TIMES
        ),
    ] = False
    """An answer that has begun and breaks off goes on at another engine, as often as
    max_attempts."""
    early_first_token: Annotated[
        bool,
        Setting(
            "Send prefill's token before decode's head.", panel=LIMITS, on_reload=OnReload.TIMES
        ),
    ] = False
    """A stream begins with prefill's token, while the KV crosses, where that token is decode's as well; no
    other engine can be asked from then on."""
    read_back: Annotated[
        bool,
        Setting(
            "Prefill reads decode's KV of the last turn.",
            panel=SCHEDULING,
            on_reload=OnReload.TIMES,
        ),
    ] = False
    """A conversation's next turn, at a prefill engine that has not read the last one, has it read what decode has
    of that; for engines of vllm-nixl with bidirectional_kv_xfer."""
    on_prefill_failure: Annotated[
        OnPrefillFailure,
        Setting("recompute: decode reads the prompt.", panel=LIMITS, on_reload=OnReload.TIMES),
    ] = OnPrefillFailure.RETRY_THEN_RECOMPUTE
    """retry asks another prefill engine, recompute has a decode engine read the prompt, fail does
    neither. retry_then_recompute also serves calls while no prefill engine is up."""
    kv_lease_seconds: Annotated[
        Seconds | None,
        Setting("How long prefill engines keep KV.", panel=LIMITS, on_reload=OnReload.FLEET),
    ] = None
    """How long prefill engines keep KV, where that was changed on them (kv_lease_duration of
    NixlConnector); else what the protocol says."""
    timeouts: TimeoutsSection = Field(default_factory=TimeoutsSection)
    models: Annotated[
        tuple[ModelEntry, ...],
        Setting("What is different for single models.", flag=None, on_reload=OnReload.MODELS),
    ] = ()
    shares: Annotated[
        tuple[ShareEntry, ...],
        Setting("Models whose calls others serve.", flag=None, on_reload=OnReload.MODELS),
    ] = ()
    health: HealthSection = Field(default_factory=HealthSection)
    drain: DrainingSection = Field(default_factory=DrainingSection)
    engine_metrics: EngineMetricsSection = Field(default_factory=EngineMetricsSection)
    api_keys: Annotated[
        tuple[ApiKeyEntry, ...],
        Setting("Keys that callers need.", flag=None, on_reload=OnReload.KEYS),
    ] = ()
    api_keys_file: Annotated[
        str,
        Setting(
            "Serve calls only for who has one of the API keys in this file.",
            panel=SECURITY,
            on_reload=OnReload.KEYS,
        ),
    ] = ""
    """A TOML file with more tables [[api_keys]], and nothing else."""
    jwt: JwtSection = Field(default_factory=JwtSection)
    client_authorization: Annotated[
        Literal["drop", "pass", "replace"] | None,
        Setting("What engines get of the client's header Authorization.", panel=SECURITY),
    ] = None
    """What becomes of the client's header: drop, pass to engines, or replace by engine_key_file's.
    None: replace if there is such a file, else drop if there are api_keys, else pass."""
    engine_key_file: Annotated[
        str, Setting("The key that engines ask for is in this file.", panel=SECURITY)
    ] = ""
    """A file with the key that engines ask for (vLLM's --api-key)."""
    forward_headers: Annotated[
        HeaderNames, Setting("More headers that engines get, between commas.", panel=SECURITY)
    ] = ""
    """More headers of clients that engines get; names between commas."""
    return_headers: Annotated[
        HeaderNames, Setting("More headers that clients get, between commas.", panel=SECURITY)
    ] = ""
    """More headers of engines that clients get; names between commas."""
    tls: TlsSection = Field(default_factory=TlsSection)
    engine_tls: EngineTlsSection = Field(default_factory=EngineTlsSection)
    admin_token_file: Annotated[
        str, Setting("Serve /admin/... for who knows the token in this file.", panel=LIMITS)
    ] = ""
    """Serves /admin/... for who knows the token in this file."""
    cors_origins: Annotated[
        Origins, Setting("Web pages that may call from browsers, between commas.", panel=SECURITY)
    ] = ""
    """Web pages that may call from browsers, as https://example.com between commas; * for all."""
    admin_listen: Annotated[
        Listener,
        Setting("host:port of a listener for /admin/... and /debug/... alone.", panel=SECURITY),
    ] = ""
    """host:port of a listener of their own for /admin/... and /debug/...; empty for the one that
    clients use."""
    metrics_on: Annotated[
        Literal["both", "admin"], Setting("Listeners with /metrics.", panel=SECURITY)
    ] = "both"
    """both, or only the admin listener."""
    console: Annotated[
        bool, Setting("Serve /console, if there is an admin token.", panel=INSIGHT)
    ] = True
    """Serves /console where admin_token_file is given."""
    passthrough: Annotated[
        bool,
        Setting("Unknown /v1 routes pass to an engine.", panel=LIMITS, on_reload=OnReload.INTAKE),
    ] = False
    """Routes of /v1 that the gateway does not know pass, as they come, to an engine of the model
    that a JSON body, a form or ?model= names."""
    debug_routes: Annotated[bool, Setting("Serve GET /debug/calls/{id}.", panel=INSIGHT)] = False
    """Serves GET /debug/calls/{request id}."""
    debug_headers: Annotated[
        bool, Setting("Name the instances to clients.", panel=INSIGHT, on_reload=OnReload.INSIGHT)
    ] = False
    """Tells clients which instances answered."""
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Setting("From here on.", panel=INSIGHT, on_reload=OnReload.INSIGHT),
    ] = "info"
    log_format: Annotated[
        Literal["text", "json"], Setting("Of lines on stderr.", panel=INSIGHT)
    ] = "text"
    """Of lines on stderr: text for people, json for machines."""
    call_log: Annotated[
        bool, Setting("One line for each call.", panel=INSIGHT, on_reload=OnReload.INSIGHT)
    ] = False
    log_prompts: Annotated[
        bool, Setting("Show in it what was asked.", panel=INSIGHT, on_reload=OnReload.INSIGHT)
    ] = False
    """The call log shows what was asked."""
    tracing: TracingSection = Field(default_factory=TracingSection)

    @property
    def fleet(self) -> tuple[Instance, ...]:
        """The engines, with ids, protocols and generations filled in."""
        return records(self.instances, self.protocol_of, self.generation)

    @property
    def aliases(self) -> dict[str, str]:
        """Other names of models -> their own."""
        return {alias: model.name for model in self.models for alias in model.aliases}

    @property
    def asks_for_keys(self) -> bool:
        """Whether only callers are served that show who they are."""
        return bool(self.api_keys or self.api_keys_file or self.jwt.issuer)

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

    @model_validator(mode="after")
    def _every_share_leads_somewhere(self) -> Self:
        named = Counter(share.model for share in self.shares)
        for share in self.shares:
            where = f"the shares of {share.model!r}"
            if named[share.model] > 1:
                raise ValueError(f"several shares are of the model {share.model!r}")
            if not share.to:
                raise ValueError(f"{where} lead to no model")
            if share.model in self.aliases:
                raise ValueError(f"{where}: it is an alias; name the model itself")
            if again := sorted(named.keys() & share.to.keys()):
                raise ValueError(f"{where} lead to {again[0]!r}, whose calls are shared themselves")
            if aliases := sorted(self.aliases.keys() & share.to.keys()):
                raise ValueError(f"{where} lead to {aliases[0]!r}, an alias; name the model itself")
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
