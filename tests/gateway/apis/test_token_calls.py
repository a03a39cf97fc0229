"""/inference/v1/generate: token ids over two engines."""

import json
from typing import Any

import pytest

from pdgate.protocols.apis import GENERATE
from pdgate.protocols.instance import Role
from tests.support.fleet import (
    BLOCKS,
    STREAM_HEAD,
    Engine,
    as_json,
    breaks_off,
    gateway_of,
    says,
    streams,
)
from tests.support.raw_server import chunk

pytestmark = [
    pytest.mark.usefixtures("front_end"),
    pytest.mark.parametrize("front_end", ["asgi", "hot"], indirect=True),
]

SAMPLING = {"max_tokens": 4, "min_tokens": 2, "logprobs": 1, "extra_args": {"theirs": 1}}
ASKED: dict[str, Any] = {"model": "m", "token_ids": [1, 2, 3], "sampling_params": SAMPLING}
CHOICE = {"index": 0, "token_ids": [5, 6], "finish_reason": "length"}
ANSWER = {"request_id": "generate-tokens-x", "choices": [CHOICE]}
READ = {**ANSWER, "kv_transfer_params": BLOCKS}
PIECE = {"request_id": "x", "choices": [{**CHOICE, "finish_reason": None}]}


def event(payload: Any) -> bytes:
    return f"data: {json.dumps(payload)}\n\n".encode()


EVENTS = (event(PIECE), event(ANSWER), b"data: [DONE]\n\n")


async def test_calls_of_tokens_are_split_where_engines_hand_over() -> None:
    prefill = Engine(Role.PREFILL, says(as_json(READ)))
    decode = Engine(Role.DECODE, says(as_json(READ)))
    async with gateway_of(prefill, decode) as gateway:
        said = await gateway.http.post(GENERATE, json=ASKED)

        assert said.json() == ANSWER
        read, wrote = prefill.bodies[0], decode.bodies[0]
        # vLLM loses the field at the top on its way to the engine before its #42644.
        ask = read["sampling_params"]["extra_args"].pop("kv_transfer_params")
        assert ask["do_remote_decode"] is True
        assert read["sampling_params"] == {
            "max_tokens": 1,
            "ignore_eos": True,
            "extra_args": {"theirs": 1},
        }
        assert wrote["sampling_params"] == {
            **SAMPLING,
            "extra_args": {"theirs": 1, "kv_transfer_params": BLOCKS},
        }
        assert (read["kv_transfer_params"], wrote["kv_transfer_params"]) == (ask, BLOCKS)
        assert read["token_ids"] == wrote["token_ids"] == [1, 2, 3]
        counted = await gateway.metrics()
        assert counted["pdgate_kv_handover_total", "vllm-nixl", "done"] == 1


async def test_tokens_are_streamed_as_the_engine_sent_them() -> None:
    prefill = Engine(Role.PREFILL, says(as_json(READ)))
    async with gateway_of(prefill, Engine(Role.DECODE, streams(*EVENTS))) as gateway:
        said = await gateway.http.post(GENERATE, json={**ASKED, "stream": True})

        assert said.content == b"".join(EVENTS)


async def test_a_stream_of_tokens_that_breaks_off_is_not_called_whole() -> None:
    cut = breaks_off(STREAM_HEAD, chunk(EVENTS[0]))
    async with gateway_of(Engine(Role.PLAIN, cut)) as gateway:
        said = await gateway.http.post(GENERATE, json={**ASKED, "stream": True})

        assert b'"error"' in said.content
        assert b"[DONE]" not in said.content


async def test_one_of_two_choices_is_not_the_whole_stream() -> None:
    two = {**ASKED, "stream": True, "sampling_params": {"n": 2}}
    async with gateway_of(Engine(Role.PLAIN, streams(*EVENTS))) as gateway:
        said = await gateway.http.post(GENERATE, json=two)

        assert b"[DONE]" not in said.content


@pytest.mark.parametrize("sampling", [{"n": 2}, {"prompt_logprobs": 0}])
async def test_what_one_engine_must_do_alone_stays_with_decode(sampling: dict[str, Any]) -> None:
    prefill, decode = Engine(Role.PREFILL), Engine(Role.DECODE, says(as_json(ANSWER)))
    async with gateway_of(prefill, decode) as gateway:
        said = await gateway.http.post(GENERATE, json={**ASKED, "sampling_params": sampling})

        assert said.json() == ANSWER
        assert not prefill.calls
        assert decode.bodies[0]["sampling_params"] == sampling


@pytest.mark.parametrize(
    ("sampling", "what"),
    [
        ({"extra_args": {"kv_transfer_params": {"remote_host": "x"}}}, "set by the gateway"),
        ([1], "must be an object"),
    ],
)
async def test_what_is_wrong_is_said(sampling: Any, what: str) -> None:
    engines = [Engine(Role.PREFILL), Engine(Role.DECODE)]
    async with gateway_of(*engines) as gateway:
        said = await gateway.http.post(GENERATE, json={**ASKED, "sampling_params": sampling})

        assert said.status_code == 400
        assert what in said.json()["error"]["message"]
        assert not any(engine.calls for engine in engines)
