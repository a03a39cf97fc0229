"""The groups of configuration keys: what each part of the gateway is told, types and defaults."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from pdgate.gateway.config.instances import HIGHEST_PORT
from pdgate.gateway.kv_events.sources import check_template
from pdgate.gateway.tracing.collector import check_endpoint, check_headers_file
from pdgate.scheduling.health.breaker import WINDOW

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


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


class Tracing(Section):
    """One trace for each call, sent to an OpenTelemetry collector (extra `otel`).

    Attributes:
        endpoint: URL of its OTLP/HTTP receiver, to which /v1/traces and /v1/metrics are added;
            empty for none.
        sample_ratio: Share of the calls whose clients do not say themselves whether they are
            sampled (traceparent).
        service_name: That the traces are of.
        headers_file: Lines of `name: value` that the collector is sent, a token for one.
    """

    endpoint: Annotated[str, AfterValidator(check_endpoint)] = ""
    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 1.0
    service_name: Annotated[str, Field(min_length=1)] = "pdgate"
    headers_file: Annotated[str, AfterValidator(check_headers_file)] = ""


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
