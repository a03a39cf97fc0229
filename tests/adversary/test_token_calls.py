"""Calls of tokens: what engines' own routes take of their peers and routers, and of no client.

SGLang's /generate and vLLM's /inference/v1/generate were made for what stands before an engine. Their
fields say where an engine sends outputs, whom it asks for KV, and which adapter computes.
"""

from typing import Any

import pytest

from pdgate.protocols.apis import GENERATE, NATIVE
from pdgate.protocols.call import CHAT
from pdgate.protocols.instance import Role
from tests.adversary.test_models_of_tenants import AS_ALL, AS_MINE, KEYS, MINE, THEIRS, engine
from tests.support.fleet import Engine, gateway_of

ELSEWHERE = "tcp://192.0.2.7:5000"
OF_PARTS: dict[str, Any] = {
    "http_worker_ipc": ELSEWHERE,
    "kv_router_hint": {"source_control_endpoint": ELSEWHERE, "block_hashes": ["a"]},
    "encoder_urls": ["http://192.0.2.7:5000"],
    "need_wait_for_mm_inputs": True,
    "num_items_assigned": {"IMAGE": [1]},
    "mm_hashes": ["00"],
    "mm_content_hashes": ["sha256:00"],
}
BODIES: dict[str, dict[str, Any]] = {
    NATIVE: {"text": "hi", "sampling_params": {"max_new_tokens": 1}},
    GENERATE: {"token_ids": [1], "sampling_params": {"max_tokens": 1}},
    CHAT: {"messages": []},
}


@pytest.mark.parametrize("path", BODIES)
async def test_what_tells_an_engine_whom_to_ask_comes_from_no_client(path: str) -> None:
    async with gateway_of(Engine(Role.PLAIN)) as gateway:
        for name, said in OF_PARTS.items():
            for more in ({name: said}, {"extra_body": {name: said}}):
                answer = await gateway.http.post(path, json=BODIES[path] | more)
                assert answer.status_code == 400, name
                assert name in answer.json()["error"]["message"]
            await gateway.http.post(path, json=BODIES[path] | {name: None})
            assert gateway.engines[0].calls, name
            gateway.engines[0].calls.clear()


async def test_a_client_that_is_trusted_may_say_it() -> None:
    async with gateway_of(Engine(Role.PLAIN), trust_client_kv_params=True) as gateway:
        await gateway.http.post(NATIVE, json=BODIES[NATIVE] | OF_PARTS)

        assert gateway.engines[0].bodies[0] | OF_PARTS == gateway.engines[0].bodies[0]


async def test_no_client_of_sglang_chooses_a_rank() -> None:
    engines = Engine(Role.PREFILL), Engine(Role.DECODE)
    async with gateway_of(*engines, pdd_protocol="sglang") as gateway:
        for name in ("routed_dp_rank", "data_parallel_rank", "disagg_prefill_dp_rank"):
            answer = await gateway.http.post(NATIVE, json=BODIES[NATIVE] | {name: 1})
            assert answer.status_code == 400, name
        assert not any(engine.calls for engine in engines)


def sampling(path: str, more: dict[str, Any]) -> dict[str, Any]:
    return {"sampling_params": BODIES[path]["sampling_params"] | more}


ADAPTED = [
    (NATIVE, {"lora_path": THEIRS}),
    (NATIVE, {"lora_path": [THEIRS]}),
    (NATIVE, {"lora_id": "0" * 32}),
    (NATIVE, {"sampling_params": [{"lora_path": THEIRS}]}),
    (GENERATE, {"lora_request": {"lora_name": THEIRS}}),
    (GENERATE, sampling(GENERATE, {"model": THEIRS})),
    (GENERATE, sampling(GENERATE, {"extra_args": {"lora_path": THEIRS}})),
]


@pytest.mark.parametrize(("path", "more"), ADAPTED)
async def test_a_key_for_one_model_names_no_adapter(path: str, more: dict[str, Any]) -> None:
    async with gateway_of(engine(), api_keys=KEYS) as gateway:
        call = BODIES[path] | {"model": MINE}
        refused = await gateway.http.post(path, json=call | more, headers=AS_MINE)
        assert refused.status_code == 400
        assert not gateway.engines[0].calls
        for headers, body in ((AS_MINE, call), (AS_ALL, call | more)):
            await gateway.http.post(path, json=body, headers=headers)
        assert len(gateway.engines[0].calls) >= 2


async def test_a_key_for_one_model_asks_no_other_one() -> None:
    async with gateway_of(engine(), api_keys=KEYS) as gateway:
        for path in (NATIVE, GENERATE):
            for model in ({}, {"model": None}, {"model": THEIRS}):
                call = BODIES[path] | model
                assert (
                    await gateway.http.post(path, json=call, headers=AS_MINE)
                ).status_code == 403
        assert not gateway.engines[0].calls
