"""/v1/responses and /v1/messages: as sure as chat, in the words of their own APIs."""

import json
from typing import Any

import pytest

from pdgate.protocols import response_id
from pdgate.protocols.apis import MESSAGES, RESPONSES
from pdgate.protocols.instance import Role
from tests.gateway.apis.words import (
    BLOCK,
    COMPLETED,
    DELTA,
    MESSAGE,
    OPENED,
    QUESTION,
    READ,
    RESPONDED,
    SAID,
    STARTED,
    STOPPED,
    event,
)
from tests.support.fleet import (
    BLOCKS,
    STREAM_HEAD,
    Engine,
    as_json,
    breaks_off,
    engine_error,
    gateway_of,
    says,
    streams,
)
from tests.support.raw_server import chunk

pytestmark = [
    pytest.mark.usefixtures("front_end"),
    pytest.mark.parametrize("front_end", ["asgi", "hot", "hypercorn"], indirect=True),
]

ASKED: list[tuple[str, dict[str, Any], Any]] = [
    (RESPONSES, QUESTION, RESPONDED),
    (MESSAGES, MESSAGE, SAID),
]
STREAMS: list[tuple[str, dict[str, Any], tuple[bytes, ...]]] = [
    (RESPONSES, QUESTION, (*OPENED, DELTA, COMPLETED)),
    (MESSAGES, MESSAGE, (STARTED, BLOCK, STOPPED)),
]


@pytest.mark.parametrize(("path", "asked", "answer"), ASKED)
async def test_calls_are_split_where_engines_hand_over(
    path: str, asked: dict[str, Any], answer: Any
) -> None:
    prefill = Engine(Role.PREFILL, says(as_json(READ)))
    decode = Engine(Role.DECODE, says(as_json(answer)))
    async with gateway_of(prefill, decode) as gateway:
        said = await gateway.http.post(path, json={**asked, "stream": False})

        assert said.json() == answer
        assert prefill.calls[0].line.split()[1] == path.encode()
        read, wrote = prefill.bodies[0], decode.bodies[0]
        assert read["kv_transfer_params"]["do_remote_decode"] is True
        assert wrote["kv_transfer_params"] == BLOCKS
        assert read["max_output_tokens" if path == RESPONSES else "max_tokens"] == 1
        assert {**wrote, **asked} == wrote
        counted = await gateway.metrics()
        assert counted["pdgate_kv_handover_total", "vllm-nixl", "done"] == 1


@pytest.mark.parametrize(("path", "asked", "events"), STREAMS)
async def test_events_arrive_as_the_engine_sent_them(
    path: str, asked: dict[str, Any], events: tuple[bytes, ...]
) -> None:
    prefill = Engine(Role.PREFILL, says(as_json(READ)))
    async with gateway_of(prefill, Engine(Role.DECODE, streams(*events))) as gateway:
        said = await gateway.http.post(path, json={**asked, "stream": True})

        assert said.content == b"".join(events)
        assert said.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize(("path", "asked", "events"), STREAMS)
async def test_a_stream_that_was_only_opened_goes_to_another_engine(
    path: str, asked: dict[str, Any], events: tuple[bytes, ...]
) -> None:
    """Engines open a stream before they have computed anything."""
    opened = breaks_off(STREAM_HEAD, chunk(events[0]))
    engines = [Engine(Role.PLAIN, opened), Engine(Role.PLAIN, opened)]
    engines[1].script = streams(*events)
    async with gateway_of(*engines, plain_policy="round_robin") as gateway:
        for _ in range(2):
            said = await gateway.http.post(path, json={**asked, "stream": True})

            assert said.content == b"".join(events)
        assert engines[0].calls


async def test_a_response_that_breaks_off_ends_with_an_error_event() -> None:
    cut = breaks_off(STREAM_HEAD, *map(chunk, (*OPENED, DELTA)))
    async with gateway_of(Engine(Role.PLAIN, cut)) as gateway:
        said = await gateway.http.post(RESPONSES, json={**QUESTION, "stream": True})

        *_, last = said.content.removesuffix(b"\n\n").split(b"\n\n")
        name, data = last.split(b"\n")
        error = json.loads(data.removeprefix(b"data: "))
        assert name == b"event: error"
        assert (error["type"], error["sequence_number"]) == ("error", 5)
        assert (error["code"], error["error"]["code"]) == ("engine_failed", "engine_failed")
        assert b"[DONE]" not in said.content


async def test_a_message_that_breaks_off_ends_with_an_error_event() -> None:
    cut = breaks_off(STREAM_HEAD, *map(chunk, (STARTED, BLOCK)))
    async with gateway_of(Engine(Role.PLAIN, cut)) as gateway:
        said = await gateway.http.post(MESSAGES, json={**MESSAGE, "stream": True})

        *_, last = said.content.removesuffix(b"\n\n").split(b"\n\n")
        name, data = last.split(b"\n")
        error = json.loads(data.removeprefix(b"data: "))
        assert (name, error["type"]) == (b"event: error", "error")
        assert error["error"]["type"] == "api_error"
        assert b"[DONE]" not in said.content


async def test_an_error_in_the_first_events_is_the_response() -> None:
    failed = streams(
        STARTED, event("error", error={"type": "invalid_request_error", "message": "x"})
    )
    async with gateway_of(Engine(Role.PLAIN, failed)) as gateway:
        said = await gateway.http.post(MESSAGES, json={**MESSAGE, "stream": True})

        assert (said.status_code, said.json()["error"]["message"]) == (400, "x")


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        (b"{", 400, "invalid_request_error"),
        (json.dumps({**MESSAGE, "model": "x"}).encode(), 404, "not_found_error"),
        (json.dumps({**MESSAGE, "kv_transfer_params": {}}).encode(), 400, "invalid_request_error"),
        (
            json.dumps({**MESSAGE, "request_id": "a_10.0.0.1:5"}).encode(),
            400,
            "invalid_request_error",
        ),
    ],
)
async def test_what_is_wrong_with_a_message_is_said_in_anthropics_words(
    body: bytes, status: int, kind: str
) -> None:
    async with gateway_of(Engine(Role.PREFILL), Engine(Role.DECODE)) as gateway:
        said = await gateway.http.post(MESSAGES, content=body)

        assert said.status_code == status
        assert said.json()["type"] == "error"
        assert said.json()["error"]["type"] == kind
        assert not gateway.engines[0].calls


async def test_an_engine_that_speaks_of_messages_in_other_words_is_translated() -> None:
    """vLLM answers bodies that it cannot read as OpenAI does, on every route."""
    engine = Engine(Role.PLAIN, says(engine_error(b"400 Bad Request", "max_tokens is missing")))
    async with gateway_of(engine) as gateway:
        said = await gateway.http.post(MESSAGES, json=MESSAGE)

        assert said.status_code == 400
        assert said.json() == {
            "type": "error",
            "error": {"type": "invalid_request_error", "message": "max_tokens is missing"},
        }


async def test_an_answer_that_the_engine_gave_up_comes_from_another() -> None:
    aborted = says(as_json({name: said for name, said in SAID.items() if name != "stop_reason"}))
    engines = [Engine(Role.PLAIN, aborted), Engine(Role.PLAIN, says(as_json(SAID)))]
    async with gateway_of(*engines, plain_policy="round_robin") as gateway:
        for _ in range(2):
            assert (await gateway.http.post(MESSAGES, json=MESSAGE)).json() == SAID

        assert engines[0].calls


async def test_what_goes_on_with_a_response_goes_where_it_is() -> None:
    """Engines keep responses in their own memory, and the id that we give says in whose."""
    engines = [
        Engine(Role.PLAIN, says(as_json({"id": f"of {name}", "status": "completed"})))
        for name in "abc"
    ]
    async with gateway_of(*engines, plain_policy="round_robin") as gateway:
        for number, engine in enumerate(engines):
            name = response_id.new(f"plain-{number}", "m")
            engine.probes[f"/v1/responses/{name}"] = as_json({"id": name})
            for _ in range(2):
                kept = await gateway.http.get(f"{RESPONSES}/{name}")
                assert kept.json() == {"id": name}
            await gateway.http.post(RESPONSES, json={**QUESTION, "previous_response_id": name})
            assert engine.bodies[-1]["previous_response_id"] == name
            await gateway.http.post(f"{RESPONSES}/{name}/cancel")
            assert engine.calls[-1].line.split()[1] == f"{RESPONSES}/{name}/cancel".encode()

        assert [len(engine.calls) for engine in engines] == [2, 2, 2]
        lost = await gateway.http.get(f"{RESPONSES}/resp_unknown")
        assert (lost.status_code, lost.json()["error"]["code"]) == (404, "not_found")


async def test_a_response_can_be_asked_for_by_the_id_that_it_has() -> None:
    prefill = Engine(Role.PREFILL, says(as_json(READ)))
    decode = Engine(Role.DECODE, says(as_json(RESPONDED)))
    async with gateway_of(prefill, decode) as gateway:
        await gateway.http.post(RESPONSES, json=QUESTION)
        await gateway.http.post(RESPONSES, json={**QUESTION, "store": False})

        assert response_id.tags_in(decode.bodies[0]["request_id"]) == (
            response_id.tag("decode-0"),
            response_id.tag("m"),
        )
        assert "request_id" not in decode.bodies[1]
        # What prefill answered is for nobody, so it must not pile up there.
        assert [body["store"] for body in prefill.bodies] == [False, False]


@pytest.mark.parametrize(
    "fields",
    [
        {"background": True},
        {"previous_response_id": "resp_x"},
        {"tools": [{"type": "web_search_preview"}]},
    ],
)
async def test_what_one_engine_must_do_alone_stays_with_decode(fields: dict[str, Any]) -> None:
    prefill, decode = Engine(Role.PREFILL), Engine(Role.DECODE, says(as_json(RESPONDED)))
    async with gateway_of(prefill, decode) as gateway:
        said = await gateway.http.post(RESPONSES, json={**QUESTION, **fields})

        assert said.json() == RESPONDED
        assert not prefill.calls
        assert "kv_transfer_params" not in decode.bodies[0]


async def test_a_pair_that_cannot_split_it_and_cannot_be_alone_says_so() -> None:
    engines = [Engine(Role.PREFILL), Engine(Role.DECODE)]
    async with gateway_of(*engines, pdd_protocol="sglang") as gateway:
        said = await gateway.http.post(MESSAGES, json=MESSAGE)

        assert (said.status_code, said.headers["x-should-retry"]) == (501, "false")
        assert "alone" in said.json()["error"]["message"]
        assert not engines[0].calls
        assert not engines[1].calls


async def test_where_a_pair_cannot_split_it_a_plain_engine_has_it() -> None:
    plain = Engine(Role.PLAIN, says(as_json(SAID)))
    engines = [Engine(Role.PREFILL), Engine(Role.DECODE), plain]
    async with gateway_of(*engines, pdd_protocol="sglang") as gateway:
        assert (await gateway.http.post(MESSAGES, json=MESSAGE)).json() == SAID


@pytest.mark.parametrize(("background", "status"), [(True, 200), ("true", 200), ("false", 502)])
async def test_a_response_that_runs_on_is_one_that_was_asked_to(
    background: object, status: int
) -> None:
    engine = Engine(Role.PLAIN, says(as_json({**RESPONDED, "status": "in_progress", "output": []})))
    async with gateway_of(engine, max_attempts=1) as gateway:
        said = await gateway.http.post(RESPONSES, json={**QUESTION, "background": background})

        assert said.status_code == status
