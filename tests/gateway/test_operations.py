"""What operators see: health, readiness, models, metrics, single calls."""

import asyncio
import json

import pytest

from pdgate.gateway.config.sections import HealthSection
from pdgate.protocols.instance import Role
from tests.support.answers import several, usage
from tests.support.fleet import (
    ANSWER,
    LAST_CHUNK,
    PATIENCE_SECONDS,
    STREAM_HEAD,
    Engine,
    Gateway,
    Held,
    as_json,
    ask,
    breaks_off,
    engine_error,
    gateway_of,
    says,
    streams,
)
from tests.support.raw_server import chunk, reply

pytestmark = pytest.mark.usefixtures("front_end")

DOWN = reply(b"", b"503 Service Unavailable")
EVENTS = (b'data: {"choices": [{"text": "a", "finish_reason": "stop"}]}\n\n', b"data: [DONE]\n\n")


async def becomes_ready(gateway: Gateway, ready: bool) -> dict[str, object]:
    """What /ready says then; only probes change it, so a few of their intervals pass."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (answer := await gateway.http.get("/ready")).json()["ready"] is not ready:
            pass
    assert answer.status_code == (200 if ready else 503)
    found: dict[str, object] = answer.json()
    return found


async def test_health_says_that_this_process_answers() -> None:
    async with gateway_of() as gateway:
        answer = await gateway.http.get("/health")

        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


async def test_ready_follows_the_engines() -> None:
    decode = Engine(Role.DECODE)
    async with gateway_of(Engine(Role.PREFILL), decode) as gateway:
        model = {"ready": True, "prefill": 1, "decode": 1, "plain": 0}
        assert (await gateway.http.get("/ready")).json() == {
            "ready": True,
            "missing": [],
            "models": {"m": model},
        }

        healthy, decode.probes["/health"] = decode.probes["/health"], DOWN
        said = await becomes_ready(gateway, False)
        assert said["missing"] == [{"protocol": "vllm-nixl", "role": "decode", "why": "none is up"}]
        assert said["models"] == {"m": {"ready": False, "prefill": 1, "decode": 0, "plain": 0}}

        decode.probes["/health"] = healthy
        await becomes_ready(gateway, True)


async def test_a_role_that_nobody_has_is_missing() -> None:
    async with gateway_of(Engine(Role.PREFILL)) as gateway:
        answer = await gateway.http.get("/ready")

        assert answer.status_code == 503
        assert answer.json()["missing"] == [
            {"protocol": "vllm-nixl", "role": "decode", "why": "none is configured"}
        ]


async def test_ready_can_be_asked_of_one_model() -> None:
    """Whose engines are well serves, whatever another model lacks."""
    well, sick = Engine(Role.PLAIN, None, "m"), Engine(Role.PLAIN, None, "n")
    async with gateway_of(well, sick) as gateway:
        await becomes_ready(gateway, True)
        sick.probes["/health"] = DOWN
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await gateway.http.get("/ready?model=n")).status_code == 200:
                pass

        assert (await gateway.http.get("/ready?model=m")).status_code == 200
        assert (await gateway.http.get("/ready?model=other")).status_code == 503


async def test_nobody_is_not_ready() -> None:
    async with gateway_of() as gateway:
        assert (await gateway.http.get("/ready")).status_code == 503


async def test_models_are_those_of_all_engines_with_their_own_fields() -> None:
    plain, other = Engine(Role.PLAIN), Engine(Role.PLAIN)
    card = {"id": "m", "object": "model", "owned_by": "vllm", "max_model_len": 4096}
    plain.probes["/v1/models"] = as_json({"object": "list", "data": [card]})
    other.probes["/v1/models"] = as_json({"data": [{"id": "m"}, {"id": "n", "root": "/n"}]})
    async with gateway_of(plain, other) as gateway:
        found = (await gateway.http.get("/v1/models")).json()

        assert found["object"] == "list"
        assert found["data"] == [card, {"id": "n", "root": "/n"}]


async def test_only_models_that_can_be_had_are_listed() -> None:
    plain = Engine(Role.PLAIN)
    async with gateway_of(plain) as gateway:
        plain.probes["/health"] = DOWN
        await becomes_ready(gateway, False)

        assert (await gateway.http.get("/v1/models")).json()["data"] == []


async def test_metrics_count_what_happened() -> None:
    prefill, decode = Engine(Role.PREFILL), Engine(Role.DECODE)
    async with gateway_of(prefill, decode) as gateway:
        for _ in range(3):
            await gateway.chat()
        decode.script = streams(*EVENTS)
        await gateway.chat(stream=True)
        decode.script = says(engine_error(b"400 Bad Request", "no"))
        await gateway.chat()
        decode.script = breaks_off()
        await gateway.chat()
        decode.script = says(as_json(several(ANSWER)))
        await gateway.chat(n=2)
        await gateway.chat(model="other")
        await gateway.chat(kv_transfer_params={"a": 1})
        found = await gateway.metrics()

        calls = {key[1:]: n for key, n in found.items() if key[0] == "pdgate_calls_total" and n}
        assert calls == {
            ("m", "ok", "disaggregated", "vllm-nixl"): 4,
            ("m", "engine_rejected", "disaggregated", "vllm-nixl"): 1,
            # Its last attempt was to do without prefill.
            ("m", "engine_failed", "decode_only", "vllm-nixl"): 1,
            ("m", "ok", "local", "vllm-nixl"): 1,
            # Its name is not a label, or clients could make up as many as they like.
            ("", "model_not_found", "", ""): 1,
        }
        assert found["pdgate_requests_refused_total", "400"] == 1
        assert found["pdgate_kv_handover_total", "vllm-nixl", "done"] == 4
        assert found["pdgate_kv_handover_total", "vllm-nixl", "failed"] == 1
        # What engines refuse says nothing of the hand-over.
        assert found["pdgate_kv_handover_total", "vllm-nixl", "unknown"] == 1
        assert found["pdgate_first_byte_seconds_count", "m", "vllm-nixl"] == 5
        assert found["pdgate_stage_seconds_count", "m", "vllm-nixl", "prefill"] >= 4
        assert found["pdgate_calls_in_flight",] == 0
        assert found["pdgate_instance_up", "prefill-0", "prefill"] == 1


async def test_tokens_are_read_from_the_end_of_an_answer() -> None:
    said = {"prompt_tokens": 40, "completion_tokens": 16, "total_tokens": 56}
    plain = Engine(
        Role.PLAIN, says(as_json({"choices": [{"finish_reason": "stop"}], "usage": said}))
    )
    async with gateway_of(plain) as gateway:
        await gateway.chat()
        plain.script = streams(EVENTS[0], usage(3), EVENTS[1])
        await gateway.chat(stream=True)

        found = await gateway.metrics()
        assert found["pdgate_tokens_total", "prompt", "m"] == 40
        assert found["pdgate_tokens_total", "generated", "m"] == 19
        assert found["pdgate_ttft_seconds_count", "m", "plain"] == 1
        assert found["pdgate_tpot_seconds_count", "m", "plain"] == 1


async def test_usage_is_found_where_each_event_comes_by_itself() -> None:
    """It is the last event but one then, and the end brings nothing."""
    held = Held()
    async with gateway_of(Engine(Role.PLAIN, held)) as gateway:
        reader, writer = await gateway.wire()
        writer.write(ask(stream=True))
        call = await held.next()
        await call.peer.send(STREAM_HEAD)
        for event in (EVENTS[0], usage(3), EVENTS[1]):
            await call.peer.send(chunk(event))
            await reader.readuntil(event)
        await call.peer.send(LAST_CHUNK)
        await reader.readuntil(LAST_CHUNK)

        assert (await gateway.metrics())["pdgate_tokens_total", "generated", "m"] == 3


async def test_choices_that_nobody_could_do_justice_to_are_counted() -> None:
    """Prompts that no engine can read in time, with the default policy."""
    prefills = [Engine(Role.PREFILL), Engine(Role.PREFILL)]
    async with gateway_of(
        *prefills, Engine(Role.DECODE), targets={"ttft_seconds": 1e-6}
    ) as gateway:
        for _ in range(2):
            await gateway.chat()

        found = await gateway.metrics()
        name = "pdgate_policy_passed_over_total"
        assert found[name, "first_token_in_time", "slo", "prefill"] == 2


async def test_the_metrics_page_is_what_prometheus_asks_for() -> None:
    async with gateway_of(Engine(Role.PLAIN)) as gateway:
        answer = await gateway.http.get("/metrics")

        assert answer.headers["content-type"].startswith("text/plain; version=")


async def test_single_calls_are_shown_only_where_that_is_wanted() -> None:
    async with gateway_of(Engine(Role.PREFILL), Engine(Role.DECODE)) as gateway:
        await gateway.chat({"x-request-id": "mine"})
        answer = await gateway.http.get("/debug/calls/mine")

        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "not_found"


@pytest.mark.parametrize("name", ["mine", "a/b", "a:b@c"])
async def test_a_call_can_be_looked_up_by_the_id_that_its_client_saw(name: str) -> None:
    engines = Engine(Role.PREFILL), Engine(Role.DECODE)
    async with gateway_of(*engines, debug_routes=True) as gateway:
        await gateway.chat({"x-request-id": name}, secret="sesame")
        answer = await gateway.http.get(f"/debug/calls/{name}")

        found = answer.json()
        assert (found["id"], found["outcome"], found["kv"]) == (name, "ok", "handed_over")
        legs = found["attempts"][0]["legs"]
        assert [leg["instance"] for leg in legs] == ["prefill-0", "decode-0"]
        assert "sesame" not in answer.text
        assert (await gateway.http.get("/debug/calls/other")).status_code == 404


async def test_headers_name_instances_only_where_that_is_wanted() -> None:
    for wanted in (False, True):
        engines = Engine(Role.PREFILL), Engine(Role.DECODE)
        async with gateway_of(*engines, debug_headers=wanted) as gateway:
            found = {
                name: value
                for name, value in (await gateway.chat()).headers.items()
                if name.startswith("x-pd-")
            }

            named = {"x-pd-path": "disaggregated", "x-pd-prefill": "prefill-0"}
            assert found == ({**named, "x-pd-decode": "decode-0"} if wanted else {})


async def test_each_call_can_be_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "pdgate.calls")
    engines = Engine(Role.PREFILL), Engine(Role.DECODE)
    async with gateway_of(*engines, call_log=True) as gateway:
        await gateway.chat({"x-request-id": "mine"})

        lines = [record.message for record in caplog.records if record.name == "pdgate.calls"]
        assert [json.loads(line)["id"] for line in lines] == ["mine"]


async def test_an_engine_that_refuses_gets_no_call_before_it_is_seen_up_again() -> None:
    """Probes are far apart here, so it is the refused call that ejects it."""
    prefill, away, decode = Engine(Role.PREFILL), Engine(Role.DECODE), Engine(Role.DECODE)
    rare = HealthSection(interval_seconds=600, timeout_seconds=10)
    async with gateway_of(prefill, away, decode, health=rare) as gateway:
        away.refuse()
        # Equals are drawn: some calls go to the other one first.
        calls = 0
        while (await gateway.metrics())["pdgate_instance_up", "decode-0", "decode"]:
            calls += 1
            assert (await gateway.chat()).status_code == 200

        assert len(decode.calls) == calls
