"""/inference/v1/generate: token ids over two engines."""

import json
from typing import Any

import pytest

from pdgate.gateway.config.api_keys import ApiKeyEntry
from pdgate.gateway.security.keys import hash_of
from pdgate.protocols.apis import GENERATE
from pdgate.protocols.instance import Role
from tests.support.answers import several
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
from tests.support.raw_server import Peer, Script, chunk

pytestmark = pytest.mark.usefixtures("front_end")
both = pytest.mark.parametrize("front_end", ["asgi", "hot"], indirect=True)
hot = pytest.mark.parametrize("front_end", ["hot"], indirect=True)

SAMPLING = {"max_tokens": 4, "min_tokens": 2, "logprobs": 1, "extra_args": {"theirs": 1}}
ASKED: dict[str, Any] = {"model": "m", "token_ids": [1, 2, 3], "sampling_params": SAMPLING}
CHOICE = {"index": 0, "token_ids": [5, 6], "finish_reason": "length"}
ANSWER = {"request_id": "generate-tokens-x", "choices": [CHOICE]}
READ = {**ANSWER, "kv_transfer_params": BLOCKS}
PIECE = {"request_id": "x", "choices": [{**CHOICE, "finish_reason": None}]}


def event(payload: Any) -> bytes:
    return f"data: {json.dumps(payload)}\n\n".encode()


EVENTS = (event(PIECE), event(ANSWER), b"data: [DONE]\n\n")


@both
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


@both
async def test_tokens_are_streamed_as_the_engine_sent_them() -> None:
    prefill = Engine(Role.PREFILL, says(as_json(READ)))
    async with gateway_of(prefill, Engine(Role.DECODE, streams(*EVENTS))) as gateway:
        said = await gateway.http.post(GENERATE, json={**ASKED, "stream": True})

        assert said.content == b"".join(EVENTS)


@both
async def test_a_stream_of_tokens_that_breaks_off_is_not_called_whole() -> None:
    cut = breaks_off(STREAM_HEAD, chunk(EVENTS[0]))
    async with gateway_of(Engine(Role.PLAIN, cut)) as gateway:
        said = await gateway.http.post(GENERATE, json={**ASKED, "stream": True})

        assert b'"error"' in said.content
        assert b"[DONE]" not in said.content


@hot
async def test_one_of_two_choices_is_not_the_whole_stream() -> None:
    two = {**ASKED, "stream": True, "sampling_params": {"n": 2}}
    async with gateway_of(Engine(Role.PLAIN, streams(*EVENTS))) as gateway:
        said = await gateway.http.post(GENERATE, json=two)

        assert b"[DONE]" not in said.content


@pytest.mark.parametrize("sampling", [{"n": 2}, {"prompt_logprobs": 0}])
@hot
async def test_what_one_engine_must_do_alone_stays_with_decode(sampling: dict[str, Any]) -> None:
    answer = several(ANSWER)
    prefill, decode = Engine(Role.PREFILL), Engine(Role.DECODE, says(as_json(answer)))
    async with gateway_of(prefill, decode) as gateway:
        said = await gateway.http.post(GENERATE, json={**ASKED, "sampling_params": sampling})

        assert said.json() == answer
        assert not prefill.calls
        assert decode.bodies[0]["sampling_params"] == sampling


WRONG: list[tuple[Any, str]] = [
    ({"extra_args": {"kv_transfer_params": {"remote_host": "x"}}}, "set by the gateway"),
    ({"kv_transfer_params": {"remote_host": "x"}}, "set by the gateway"),
    ({"extra_args": {"remote_host": "x"}}, "set by the gateway"),
    ([1], "sampling_params must be an object"),
    ({"extra_args": [1]}, "extra_args must be an object"),
    ({"allowed_token_ids": [1000] * 300_000}, "longer than"),
]


@pytest.mark.parametrize("roles", [(Role.PREFILL, Role.DECODE), (Role.PLAIN,)])
@both
async def test_what_is_wrong_is_said(roles: tuple[Role, ...]) -> None:
    async with gateway_of(*map(Engine, roles)) as gateway:
        for sampling, what in WRONG:
            said = await gateway.http.post(GENERATE, json={**ASKED, "sampling_params": sampling})

            assert said.status_code == 400
            assert what in said.json()["error"]["message"]
        assert not any(engine.calls for engine in gateway.engines)


@hot
async def test_one_token_is_prefill_s_alone_and_a_limit_at_the_top_is_none() -> None:
    prefill = Engine(Role.PREFILL, says(as_json(READ)))
    decode = Engine(Role.DECODE, says(as_json(ANSWER)))
    async with gateway_of(prefill, decode) as gateway:
        one = {**ASKED, "sampling_params": {"max_tokens": 1}}
        assert (await gateway.http.post(GENERATE, json=one)).json() == ANSWER
        assert (prefill.bodies, decode.calls) == ([one], [])

        at_the_top = {**ASKED, "max_tokens": 1}
        assert (await gateway.http.post(GENERATE, json=at_the_top)).json() == ANSWER
        assert len(decode.calls) == 1


FAILED = event(
    {"error": {"message": "KV load failure", "type": "InternalServerError", "code": 500}}
)
ABORTED = event({"request_id": "x", "choices": [{**CHOICE, "finish_reason": "abort"}]})
USAGE = event({"request_id": "x", "choices": [], "usage": {"prompt_tokens": 3}})
RECOMPUTED = {**CHOICE, "finish_reason": "stop", "stop_reason": "recomputed"}
DONE = EVENTS[-1]


@pytest.mark.parametrize(
    "lost",
    [
        streams(FAILED, DONE),
        streams(DONE),
        streams(USAGE, DONE),
        streams(ABORTED, DONE),
        streams(event({"request_id": "x", "choices": [RECOMPUTED]}), DONE),
        streams(),
        breaks_off(STREAM_HEAD),
        breaks_off(STREAM_HEAD, chunk(EVENTS[0][:20])),
        says(engine_error(b"500 Internal Server Error", "Internal server error")),
    ],
)
@hot
async def test_a_stream_that_was_lost_before_its_first_token_comes_from_another(
    lost: Script,
) -> None:
    """Of a failed load of KV vLLM says an error, or nothing but the end, each after a good status."""
    prefill = Engine(Role.PREFILL, says(as_json(READ)))
    lossy, good = Engine(Role.DECODE, lost), Engine(Role.DECODE, streams(*EVENTS))
    async with gateway_of(prefill, lossy, good, decode_policy="round_robin") as gateway:
        for _ in range(2):
            said = await gateway.http.post(GENERATE, json={**ASKED, "stream": True})
            assert said.content == b"".join(EVENTS)

        assert len(lossy.calls) == 1
        ids = [dict(call.headers)[b"x-request-id"] for call in (*lossy.calls, *good.calls)]
        assert len(set(ids)) == 3


def cut(answer: bytes) -> Script:
    """Half of it, and then the end of the connection, which is the end of the answer, too."""
    return breaks_off(
        b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n", answer[: len(answer) // 2]
    )


@pytest.mark.parametrize(
    "lost",
    [
        says(engine_error(b"500 Internal Server Error", "Internal server error")),
        says(as_json({**ANSWER, "choices": []})),
        says(as_json({**ANSWER, "choices": [{**CHOICE, "finish_reason": None}]})),
        says(as_json({**ANSWER, "choices": [{**CHOICE, "finish_reason": "abort"}]})),
        says(as_json({**ANSWER, "choices": [RECOMPUTED]})),
        cut(json.dumps(ANSWER).encode()),
    ],
)
@hot
async def test_an_answer_that_is_not_whole_comes_from_another(lost: Script) -> None:
    prefill = Engine(Role.PREFILL, says(as_json(READ)))
    lossy, good = Engine(Role.DECODE, lost), Engine(Role.DECODE, says(as_json(ANSWER)))
    async with gateway_of(prefill, lossy, good, decode_policy="round_robin") as gateway:
        for _ in range(2):
            assert (await gateway.http.post(GENERATE, json=ASKED)).json() == ANSWER

        assert len(lossy.calls) == 1


@hot
async def test_a_stop_string_of_the_client_s_own_lets_no_call_go() -> None:
    answer = {**ANSWER, "choices": [RECOMPUTED]}
    asked = {**ASKED, "sampling_params": {"stop": ["recomputed"]}}
    engine = Engine(Role.PLAIN, says(as_json(answer)))
    async with gateway_of(engine) as gateway:
        assert (await gateway.http.post(GENERATE, json=asked)).json() == answer

        engine.script = streams(event(answer), DONE)
        said = await gateway.http.post(GENERATE, json={**asked, "stream": True})
        assert said.content == event(answer) + DONE


@both
async def test_what_was_handed_over_is_not_in_an_engine_s_refusal() -> None:
    """vLLM repeats the body, and the gateway has written two things of its own into it."""

    async def refuses(peer: Peer) -> None:
        found = [{"loc": ["body"], "msg": "wrong", "input": json.loads(peer.request.body)}]
        text = f"1 validation error: {found}"
        await peer.send(engine_error(b"400 Bad Request", text))

    for role in (Role.PREFILL, Role.DECODE):
        prefill, decode = Engine(Role.PREFILL, says(as_json(READ))), Engine(Role.DECODE)
        (prefill if role is Role.PREFILL else decode).script = refuses
        async with gateway_of(prefill, decode) as gateway:
            said = await gateway.http.post(GENERATE, json=ASKED)

            assert said.status_code == 400
            assert "1 validation error" in said.text
            assert not any(word in said.text for word in ("transfer", "remote", "extra_args"))


@both
async def test_a_key_for_other_models_asks_no_engine() -> None:
    secret = "pdg-a-key-of-a-test"
    key = ApiKeyEntry(name="team-a", sha256=hash_of(secret.encode()), models=("m",))
    authorized = {"authorization": f"Bearer {secret}"}
    engines = [Engine(Role.PLAIN, says(as_json(ANSWER)), "m", "other")]
    async with gateway_of(*engines, api_keys=(key,)) as gateway:
        for refused, headers in (
            ({**ASKED, "model": "other"}, authorized),
            (ASKED, {}),
        ):
            said = await gateway.http.post(GENERATE, json=refused, headers=headers)
            assert said.status_code in (401, 403, 404)
        assert not engines[0].calls

        said = await gateway.http.post(GENERATE, json=ASKED, headers=authorized)
        assert said.json() == ANSWER


@both
async def test_tokens_are_counted() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    engine = Engine(Role.PLAIN, says(as_json({**ANSWER, "usage": usage})))
    async with gateway_of(engine) as gateway:
        await gateway.http.post(GENERATE, json=ASKED)
        end = event({"request_id": "x", "choices": [], "usage": usage})
        engine.script = streams(*EVENTS[:-1], end, DONE)
        await gateway.http.post(GENERATE, json={**ASKED, "stream": True})

        counted = await gateway.metrics()
        assert counted["pdgate_tokens_total", "prompt", "m"] == 6
        assert counted["pdgate_tokens_total", "generated", "m"] == 4
