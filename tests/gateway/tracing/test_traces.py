"""One trace for each call, as a real OTLP receiver gets it, and as the engines are told of it."""

import logging
import re
from pathlib import Path
from time import time_ns
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from wsproto.events import AcceptConnection, CloseConnection

from pdgate.gateway.config.sections import TracingSection
from pdgate.gateway.tracing import export
from pdgate.gateway.tracing.conventions import asked
from pdgate.protocols.apis import GENERATE
from pdgate.protocols.call import encode
from pdgate.protocols.instance import Role
from tests.gateway.realtime.site import PATH, SocketEngine
from tests.support.answers import piece, usage
from tests.support.fleet import Engine, as_json, breaks_off, gateway_of, says, streams
from tests.support.otlp import Collected, attributes, collector
from tests.support.raw_server import Request
from tests.support.scripted import call_of
from tests.support.sockets import dialled
from tests.support.waiting import until

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLED_FROM = {"traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": "vendor=abc"}
DONE = b"data: [DONE]\n\n"

pytestmark = pytest.mark.usefixtures("front_end", "patient")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left at a gateway's end is sent, also where that takes seconds."""
    monkeypatch.setattr(export, "LAST_SECONDS", 60.0)


def split_fleet() -> tuple[Engine, Engine]:
    """Its answers are streams of three tokens."""
    events = piece("a", id="chatcmpl-7"), piece("b", "stop", id="chatcmpl-7"), usage(3), DONE
    return Engine(Role.PREFILL), Engine(Role.DECODE, streams(*events))


def told(request: Request) -> str:
    """The traceparent that an engine got."""
    found = request.header(b"traceparent")
    assert found is not None
    return found.decode()


def said_of(span: Span) -> str:
    return f"00-{span.trace_id.hex()}-{span.span_id.hex()}-01"


async def one_call(
    collected: Collected, *fleet: Engine, headers: dict[str, str] | None = None, **fields: Any
) -> None:
    async with gateway_of(*fleet, tracing=TracingSection(endpoint=collected.url)) as gateway:
        answer = await gateway.chat(headers, **fields)
        assert answer.status_code == 200


async def test_a_split_call_is_one_trace() -> None:
    before = time_ns()
    async with collector() as collected:
        prefill, decode = split_fleet()
        await one_call(collected, prefill, decode, headers=CALLED_FROM, stream=True, max_tokens=3)

    root = collected.one("pd.request")
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, CALLER)
    assert root.kind == Span.SPAN_KIND_SERVER
    children = [span for span in collected.spans if span is not root]
    assert sorted(span.name for span in children) == [
        "pd.decode",
        "pd.kv_wait",
        "pd.prefill",
        "pd.select",
        "pd.select",
    ]
    for span in children:
        assert (span.trace_id, span.parent_span_id) == (root.trace_id, root.span_id)
        assert root.start_time_unix_nano <= span.start_time_unix_nano
        assert span.start_time_unix_nano <= span.end_time_unix_nano <= root.end_time_unix_nano
    assert before <= root.start_time_unix_nano <= root.end_time_unix_nano <= time_ns()
    asked = collected.one("pd.prefill"), collected.one("pd.decode")
    waits = collected.one("pd.kv_wait")
    assert waits.start_time_unix_nano == asked[0].end_time_unix_nano
    assert asked[1].start_time_unix_nano <= waits.end_time_unix_nano
    assert len({span.span_id for span in collected.spans}) == len(collected.spans)
    # What the engines do belongs under the span of the leg that asked them.
    for span, engine in zip(asked, (prefill, decode), strict=True):
        assert span.kind == Span.SPAN_KIND_CLIENT
        (call,) = engine.calls
        assert told(call) == said_of(span)
        assert call.header(b"tracestate") == b"vendor=abc"
        assert span.trace_state == "vendor=abc"


async def test_a_trace_says_what_was_asked_and_answered_in_the_words_of_the_conventions() -> None:
    async with collector() as collected:
        await one_call(collected, *split_fleet(), stream=True, max_tokens=3, temperature=0.5)

    found = attributes(collected.one("pd.request"))
    assert re.fullmatch(r"[0-9a-f]+", found.pop("pdgate.request_id"))
    assert found.pop("gen_ai.response.time_to_first_chunk") > 0
    assert found == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "pdgate",
        "gen_ai.request.model": "m",
        "gen_ai.request.stream": True,
        "gen_ai.request.max_tokens": 3,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.response.id": "x",
        "gen_ai.response.model": "m",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.output_tokens": 3,
        "http.response.status_code": 200,
        "url.path": "/v1/chat/completions",
        "pdgate.protocol": "vllm-nixl",
        "pdgate.mode": "batch",
        "pdgate.path": "disaggregated",
        "pdgate.outcome": "ok",
        "pdgate.attempts": 1,
        "pdgate.handed_over": True,
    }
    assert collected.resources[0]["service.name"] == "pdgate"
    assert attributes(collected.one("pd.prefill"))["server.address"] == "127.0.0.1"


def test_of_a_call_of_tokens_its_sampling_parameters_are_said() -> None:
    sampling = {"max_tokens": 3, "temperature": 0.5}
    call = call_of(
        encode({"token_ids": [1], "max_tokens": 9, "sampling_params": sampling}), GENERATE
    )

    found = asked(call)

    assert (found["gen_ai.request.max_tokens"], found["gen_ai.request.temperature"]) == (3, 0.5)


async def test_a_whole_answer_says_how_it_ended() -> None:
    choice = {"index": 0, "message": {"content": "abc"}, "finish_reason": "length"}
    said = {"id": "chatcmpl-8", "model": "m-v2", "choices": [choice]}
    plain = Engine(Role.PLAIN, says(as_json({**said, "usage": {"prompt_tokens": 4}})))
    async with collector() as collected:
        await one_call(collected, plain)

    found = attributes(collected.one("pd.request"))
    assert found["gen_ai.response.id"] == "chatcmpl-8"
    assert found["gen_ai.response.model"] == "m-v2"
    assert found["gen_ai.response.finish_reasons"] == ["length"]
    assert found["gen_ai.usage.input_tokens"] == 4


async def test_each_attempt_has_its_spans_and_the_failed_one_its_error() -> None:
    prefill, decode = split_fleet()
    broken = Engine(Role.DECODE, breaks_off())
    async with collector() as collected:
        tracing = TracingSection(endpoint=collected.url)
        fleet = prefill, broken, decode
        async with gateway_of(*fleet, tracing=tracing, decode_policy="round_robin") as gateway:
            # Who is asked first is up to the policy.
            while not broken.calls:
                assert (await gateway.chat(stream=True)).status_code == 200

    trace = told(broken.calls[0])[3:35]
    collected.spans = [span for span in collected.spans if span.trace_id.hex() == trace]
    asked = collected.named("pd.decode")
    assert [attributes(span)["pdgate.attempt"] for span in asked] == [1, 2]
    assert [attributes(span).get("error.type") for span in asked] == ["engine_failed", None]
    assert asked[0].status.code == 2
    assert [told(call) for call in prefill.calls if trace in told(call)] == [
        said_of(span) for span in collected.named("pd.prefill")
    ]
    assert len(collected.named("pd.prefill")) == 2
    assert collected.one("pd.request").status.code == 0


async def test_a_client_that_is_not_sampled_is_not_traced_and_its_header_goes_on() -> None:
    prefill, decode = split_fleet()
    unsampled = {"traceparent": f"00-{TRACE}-{CALLER}-00"}
    async with collector() as collected:
        await one_call(collected, prefill, decode, headers=unsampled, stream=True)

    assert not collected.spans
    assert [told(engine.calls[0]) for engine in (prefill, decode)] == [unsampled["traceparent"]] * 2


async def test_only_the_share_of_calls_is_traced_that_is_wanted() -> None:
    prefill, decode = split_fleet()
    async with collector() as collected:
        never = TracingSection(endpoint=collected.url, sample_ratio=0)
        async with gateway_of(prefill, decode, tracing=never) as gateway:
            await gateway.chat(stream=True)

    assert not collected.spans
    assert prefill.calls[0].header(b"traceparent") is None


async def test_nothing_of_what_people_wrote_leaves() -> None:
    async with collector() as collected:
        wrote = [{"role": "user", "content": "sesame"}]
        await one_call(collected, *split_fleet(), stream=True, messages=wrote, user="sesame")

    assert collected.spans
    assert not any(b"sesame" in request.body for request in collected.requests)


async def test_metrics_of_the_conventions_come_along(tmp_path: Path) -> None:
    secret = tmp_path / "headers"
    secret.write_text("# of the collector\nAuthorization: Bearer sesame\n")
    async with collector() as collected:
        tracing = TracingSection(endpoint=collected.url, headers_file=str(secret), sample_ratio=0)
        async with gateway_of(*split_fleet(), tracing=tracing) as gateway:
            await gateway.chat(stream=True)
            await gateway.chat(stream=True)

    assert collected.metrics.keys() == {
        "gen_ai.server.request.duration",
        "gen_ai.server.time_to_first_token",
        "gen_ai.server.time_per_output_token",
    }
    for metric in collected.metrics.values():
        (point,) = metric.histogram.data_points
        assert (point.count, sum(point.bucket_counts), metric.unit) == (2, 2, "s")
        assert attributes(point)["gen_ai.request.model"] == "m"
    assert collected.requests[0].header(b"authorization") == b"Bearer sesame"


async def test_a_collector_that_refuses_costs_no_call_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with collector() as collected:
        collected.refuses = True
        tracing = TracingSection(endpoint=collected.url)
        async with gateway_of(*split_fleet(), tracing=tracing) as gateway:
            for calls in (1, 2):
                assert (await gateway.chat(stream=True)).status_code == 200
                while (await gateway.metrics())["pdgate_traces_total", "lost"] < calls:
                    pass

    ours = [found for found in caplog.records if found.name.startswith("pdgate")]
    said = [found.message for found in ours if found.levelno >= logging.WARNING]
    # There were two batches.
    (of_traces,) = (line for line in said if "traces" in line)
    assert "takes no traces, and calls go on without: Failed to export" in of_traces


async def test_a_call_log_names_the_trace(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "pdgate.calls")
    async with collector() as collected:
        tracing = TracingSection(endpoint=collected.url)
        async with gateway_of(*split_fleet(), tracing=tracing, call_log=True) as gateway:
            await gateway.chat(CALLED_FROM, stream=True)

    (line,) = (found for found in caplog.records if found.name == "pdgate.calls")
    assert f'"trace_id": "{TRACE}"' in line.message


async def test_a_session_is_one_trace_that_its_engine_is_told_of() -> None:
    engine = SocketEngine()
    async with collector() as collected:
        tracing = TracingSection(endpoint=collected.url)
        async with gateway_of(engine, tracing=tracing) as gateway:
            client = await dialled(gateway.port, f"{PATH}?model=m", *CALLED_FROM.items())
            assert isinstance(await client.hear(), AcceptConnection)
            there = await engine.sessions.get()
            await client.say(CloseConnection(code=1000))
            await there.farewell()
            there.closed.set()
            await until(lambda: gateway.drain._calls() == 0, "the session's end")

    root, leg = collected.one("pd.request"), collected.one("pd.decode")
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, CALLER)
    found = attributes(root)
    assert (found["url.path"], found["gen_ai.operation.name"]) == (PATH, "realtime")
    assert (found["http.response.status_code"], found["pdgate.outcome"]) == (101, "ok")
    (asked,) = engine.calls
    assert told(asked) == said_of(leg)
    assert asked.header(b"tracestate") == b"vendor=abc"
