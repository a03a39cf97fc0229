"""Routes that only read, or only count: whole, at one engine, and at which."""

import json
from typing import Any

import pytest

from pdgate.protocols.apis import APIS, Kind
from pdgate.protocols.instance import Role
from tests.support.fleet import Engine, as_json, engine_error, gateway_of, says

pytestmark = [
    pytest.mark.usefixtures("front_end"),
    pytest.mark.parametrize("front_end", ["asgi", "hot", "hypercorn"], indirect=True),
]

READS = [path for path, api in APIS.items() if api.kind is Kind.READS]
COUNTS = [path for path, api in APIS.items() if api.kind is Kind.COUNTS]
BODY: dict[str, Any] = {"model": "m", "input": "hi", "stream": True, "unknown": {"a": 1.0}}
FOUND = {"data": [{"embedding": [1.0]}]}


async def test_what_reads_goes_to_plain_engines_as_it_came() -> None:
    plain = Engine(Role.PLAIN, says(as_json(FOUND)))
    async with gateway_of(Engine(Role.PREFILL), Engine(Role.DECODE), plain) as gateway:
        for path in READS:
            said = await gateway.http.post(path, json=BODY)

            assert (path, said.json()) == (path, FOUND)
            assert plain.calls[-1].line.split()[1] == path.encode()
        assert plain.bodies == [BODY] * len(READS)
        counted = await gateway.metrics()
        ended = {key[1:]: n for key, n in counted.items() if key[0] == "pdgate_calls_total" and n}
        assert list(ended.values()) == [len(READS)]


async def test_what_reads_is_not_for_engines_that_only_write() -> None:
    async with gateway_of(Engine(Role.PREFILL), Engine(Role.DECODE)) as gateway:
        said = await gateway.http.post("/v1/embeddings", json=BODY)

        assert (said.status_code, said.headers["x-should-retry"]) == (501, "false")
        assert said.json()["error"]["code"] == "not_served_here"
        assert not gateway.engines[1].calls


async def test_what_counts_goes_to_any_engine() -> None:
    """A prefill engine has the tokenizer too, and is asked when others fail."""
    prefill, decode = (
        Engine(role, says(as_json({"count": 1}))) for role in (Role.PREFILL, Role.DECODE)
    )
    async with gateway_of(prefill, decode) as gateway:
        for path in COUNTS:
            assert (await gateway.http.post(path, json=BODY)).json() == {"count": 1}
        assert len(decode.calls) == len(COUNTS)
        decode.script = says(as_json({}, b"500 Oops"))
        said = await gateway.http.post("/tokenize", json=BODY)

        assert said.json() == {"count": 1}
        assert len(prefill.calls) == 1


async def test_counting_waits_for_no_room() -> None:
    plain = Engine(Role.PLAIN, says(as_json({"count": 1})))
    limits = {"decode_concurrency": 1, "waiting": 1, "wait_seconds": 0.05}
    async with gateway_of(plain, admission=limits) as gateway:
        said = await gateway.http.post("/tokenize", json=BODY)

        assert said.status_code == 200
        counted = await gateway.metrics()
        assert ("pdgate_stage_seconds_count", "plain", "queue") not in counted


@pytest.mark.parametrize("path", ["/v1/embeddings", "/tokenize"])
async def test_clients_set_none_of_our_fields_there_either(path: str) -> None:
    async with gateway_of(Engine(Role.PLAIN)) as gateway:
        said = await gateway.http.post(path, json={**BODY, "kv_transfer_params": {"a": 1}})

        assert said.json()["error"]["param"] == "kv_transfer_params"
        assert not gateway.engines[0].calls


async def test_an_engines_refusal_is_the_clients() -> None:
    plain = Engine(Role.PLAIN, says(engine_error(b"400 Bad Request", "no such encoding")))
    async with gateway_of(plain) as gateway:
        said = await gateway.http.post("/v1/embeddings", json=BODY)

        assert (said.status_code, said.json()["error"]["message"]) == (400, "no such encoding")


async def test_an_engine_that_fails_is_followed_by_another() -> None:
    failing = Engine(Role.PLAIN, says(as_json({}, b"500 Oops")))
    engines = [failing, Engine(Role.PLAIN, says(as_json(FOUND)))]
    async with gateway_of(*engines, plain_policy="round_robin") as gateway:
        for _ in range(2):
            assert (await gateway.http.post("/rerank", json=BODY)).json() == FOUND

        assert failing.calls


async def test_another_method_is_refused_as_elsewhere() -> None:
    async with gateway_of(Engine(Role.PLAIN)) as gateway:
        for path in APIS:
            said = await gateway.http.get(path)

            assert (path, said.status_code) == (path, 405)
            assert json.loads(said.content)["error"]
