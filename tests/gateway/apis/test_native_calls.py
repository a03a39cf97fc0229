"""SGLang's /generate over two engines that meet in a room."""

import json
from typing import Any

import pytest

from pdgate.protocols.apis import NATIVE
from pdgate.protocols.instance import Role
from tests.support.fleet import (
    STREAM_HEAD,
    Engine,
    Gateway,
    as_json,
    breaks_off,
    engine_error,
    gateway_of,
    says,
    streams,
)
from tests.support.raw_server import Script, chunk
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("front_end")
both = pytest.mark.parametrize("front_end", ["asgi", "hot"], indirect=True)
hot = pytest.mark.parametrize("front_end", ["hot"], indirect=True)

SAMPLING = {"max_new_tokens": 4, "temperature": 0}
ASKED: dict[str, Any] = {
    "input_ids": [1, 2, 3],
    "sampling_params": SAMPLING,
    "return_logprob": True,
}
"""As a training loop asks: there is one model, and it needs no name."""
SPLIT: dict[str, Any] = {"pdd_protocol": "sglang"}


def output(reason: Any, *tokens: int, **more: Any) -> dict[str, Any]:
    numbers = [[-0.5, token, None] for token in tokens]
    meta = {"id": "x", "finish_reason": reason, "output_token_logprobs": numbers}
    counts = {"prompt_tokens": 3, "completion_tokens": len(tokens), "cached_tokens": 1}
    return {"text": "ab", "output_ids": list(tokens), "meta_info": meta | counts, **more}


LENGTH = {"type": "length", "length": 2}
ANSWER = output(LENGTH, 5, 6)
ASKED_TO_ABORT = output({"type": "abort", "message": "Aborted", "status_code": None}, 5)
"""What /abort_request leaves: a training loop goes on with what there is."""
LOST = {"type": "abort", "message": "KV transfer failed at 10.0.0.1:5", "status_code": 500}


def event(payload: Any) -> bytes:
    return f"data: {json.dumps(payload)}\n\n".encode()


DONE = b"data: [DONE]\n\n"
EVENTS = (event(output(None, 5)), event(ANSWER), DONE)


async def counts(gateway: Gateway, **tokens: float) -> None:
    """Waits until so many are counted, of all models: these calls name none."""

    async def counted() -> bool:
        found = await gateway.metrics()
        return all(
            sum(n for name, n in found.items() if name[:2] == ("pdgate_tokens_total", kind))
            == count
            for kind, count in tokens.items()
        )

    await until(counted, f"{tokens} to be counted")


@both
async def test_a_call_is_split_over_a_room() -> None:
    prefill = Engine(Role.PREFILL, says(as_json(output(LENGTH, 5))))
    decode = Engine(Role.DECODE, says(as_json(ANSWER)))
    async with gateway_of(prefill, decode, **SPLIT) as gateway:
        said = await gateway.http.post(NATIVE, json=ASKED)

        assert said.json() == ANSWER
        (read,), (wrote,) = prefill.bodies, decode.bodies
        assert read["bootstrap_room"] == wrote["bootstrap_room"]
        for body in (read, wrote):
            assert {name: body[name] for name in ASKED} == ASKED
        assert (read["stream"], "stream" in wrote) == (False, False)
        await counts(gateway, prompt=3, generated=2)


@both
async def test_its_stream_passes_as_it_came_and_is_counted() -> None:
    prefill = Engine(Role.PREFILL, says(as_json(output(LENGTH, 5))))
    async with gateway_of(prefill, Engine(Role.DECODE, streams(*EVENTS)), **SPLIT) as gateway:
        said = await gateway.http.post(NATIVE, json={**ASKED, "stream": True})

        assert said.content == b"".join(EVENTS)
        assert prefill.bodies[0]["stream"] is False
        await counts(gateway, generated=2)


@hot
async def test_several_outputs_are_whole_when_each_has_ended() -> None:
    two = {**ASKED, "input_ids": [[1, 2], [3]], "sampling_params": {"n": 2}}
    ends = [event(output(LENGTH, 5, index=index)) for index in range(4)]
    engine = Engine(Role.PLAIN, streams(*ends, DONE))
    async with gateway_of(engine) as gateway:
        said = await gateway.http.post(NATIVE, json={**two, "stream": True})
        assert said.content == b"".join((*ends, DONE))

        engine.script = streams(*ends[:3], DONE)
        said = await gateway.http.post(NATIVE, json={**two, "stream": True})
        assert b"[DONE]" not in said.content
        assert b'"error"' in said.content

        engine.script = says(as_json([ANSWER] * 4))
        said = await gateway.http.post(NATIVE, json=two)
        assert said.json() == [ANSWER] * 4

        engine.script = says(as_json([ANSWER] * 3))
        said = await gateway.http.post(NATIVE, json=two)
        assert said.status_code == 502


@both
async def test_what_an_engine_was_asked_to_abort_is_an_answer() -> None:
    engine = Engine(Role.PLAIN, says(as_json(ASKED_TO_ABORT)))
    async with gateway_of(engine) as gateway:
        assert (await gateway.http.post(NATIVE, json=ASKED)).json() == ASKED_TO_ABORT

        engine.script = streams(event(ASKED_TO_ABORT), DONE)
        said = await gateway.http.post(NATIVE, json={**ASKED, "stream": True})
        assert said.content == event(ASKED_TO_ABORT) + DONE
        assert len(engine.calls) == 2


@hot
@pytest.mark.parametrize(
    ("lost", "stream"),
    [
        (streams(event(output(LOST)), DONE), True),
        (streams(event(output({**LOST, "status_code": 503})), DONE), True),
        (streams(DONE), True),
        (streams(), True),
        (breaks_off(STREAM_HEAD, chunk(EVENTS[0][:20])), True),
        (says(engine_error(b"500 Internal Server Error", "KV transfer failed")), False),
        (says(as_json(output(None, 5))), False),
        (says(as_json(output(LOST, 5))), False),
        (says(as_json([ANSWER, output(None, 5)])), False),
        (says(as_json([])), False),
        (says(as_json({"text": "ab"})), False),
    ],
)
async def test_what_was_lost_comes_from_another(lost: Script, stream: bool) -> None:
    good = streams(*EVENTS) if stream else says(as_json(ANSWER))
    expected = b"".join(EVENTS) if stream else json.dumps(ANSWER).encode()
    engines = [Engine(Role.PLAIN, lost), Engine(Role.PLAIN, good)]
    async with gateway_of(*engines, plain_policy="round_robin") as gateway:
        for _ in range(2):
            said = await gateway.http.post(NATIVE, json={**ASKED, "stream": stream})
            assert said.content == expected

        assert len(engines[0].calls) == 1


@hot
@pytest.mark.parametrize("after", [(), (event(output(LOST, 5)), DONE), (DONE,)])
async def test_a_stream_that_is_lost_midway_is_not_called_whole(after: tuple[bytes, ...]) -> None:
    async with gateway_of(Engine(Role.PLAIN, streams(EVENTS[0], *after))) as gateway:
        said = await gateway.http.post(NATIVE, json={**ASKED, "stream": True})

        assert said.content.startswith(EVENTS[0])
        assert b'"error"' in said.content
        assert b"[DONE]" not in said.content
        assert b"10.0.0.1" not in said.content


@hot
@pytest.mark.parametrize(
    "refused",
    [
        event({"error": {"message": "too long"}}),
        event(output({"type": "abort", "message": "too long", "status_code": 400})),
    ],
)
async def test_a_wrong_call_of_a_stream_is_the_client_s(refused: bytes) -> None:
    engines = [Engine(Role.PLAIN, streams(refused, DONE)) for _ in range(2)]
    async with gateway_of(*engines) as gateway:
        said = await gateway.http.post(NATIVE, json={**ASKED, "stream": True})

        assert (said.status_code, said.json()["error"]["message"]) == (400, "too long")
        assert sum(len(engine.calls) for engine in engines) == 1


@both
async def test_what_cannot_be_is_said() -> None:
    engines = [Engine(Role.PREFILL), Engine(Role.DECODE)]
    async with gateway_of(*engines, **SPLIT) as gateway:
        for wrong, what in (
            ({"logprob_start_len": 0}, "log-probabilities of the prompt"),
            ({"logprob_start_len": [-1, 0]}, "log-probabilities of the prompt"),
            ({"bootstrap_host": "10.0.0.1"}, "set by the gateway"),
        ):
            said = await gateway.http.post(NATIVE, json={**ASKED, **wrong})

            assert said.status_code == 400
            assert what in said.json()["error"]["message"]
        assert not any(engine.calls for engine in engines)
