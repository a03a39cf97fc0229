"""Engines that come and go by request, in the words of SGLang's Model Gateway."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pdgate.protocols.instance import Role
from tests.gateway.control.controlled import KNOWN, TOKEN, controlling
from tests.support.fleet import Engine, Gateway
from tests.support.raw_server import raw_server
from tests.support.waiting import until


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with controlling(tmp_path, Engine(Role.PLAIN, None, "a")) as gateway:
        yield gateway


async def add(gateway: Gateway, **fields: Any) -> tuple[int, dict[str, Any]]:
    answer = await gateway.http.post("/workers", json=fields, headers=KNOWN)
    said: dict[str, Any] = answer.json()
    return answer.status_code, said


async def listed(gateway: Gateway) -> dict[str, Any]:
    said: dict[str, Any] = (await gateway.http.get("/workers", headers=KNOWN)).json()
    return said


@pytest.mark.usefixtures("front_end")
async def test_an_engine_that_is_added_serves_and_one_that_is_removed_does_not(
    gateway: Gateway,
) -> None:
    engine = Engine(Role.PLAIN, None, "b")
    async with raw_server(engine.serve) as server:
        labels = {"zone": "z"}
        status, said = await add(gateway, url=server.url, labels=labels, priority=7, cost=2.0)
        assert (status, said["status"], said["url"]) == (202, "accepted", server.url)
        where, name = said["location"], said["worker_id"]
        # Said twice it is one.
        assert (await add(gateway, url=server.url, labels=labels, priority=7, cost=2.0))[0] == 202

        async def serves() -> bool:
            return (await gateway.chat(model="b")).status_code == 200

        await until(serves, "calls at the engine that was added")
        said = (await gateway.http.get(where, headers=KNOWN)).json()
        assert {key: said[key] for key in ("id", "worker_type", "is_healthy", "model_id")} == {
            "id": name,
            "worker_type": "regular",
            "is_healthy": True,
            "model_id": "b",
        }
        assert (said["priority"], said["cost"], said["metadata"]) == (7, 2.0, labels)
        assert (await listed(gateway))["stats"]["by_type"]["regular"] == 2

        assert (await gateway.http.delete(where, headers=KNOWN)).status_code == 202
        assert (await gateway.chat(model="b")).status_code == 404
        assert (await gateway.http.get(where, headers=KNOWN)).status_code == 404


async def test_a_prefill_engine_of_sglang_has_its_bootstrap_port(gateway: Gateway) -> None:
    url = "http://127.0.0.1:1"
    status, said = await add(
        gateway, url=url, worker_type="prefill", bootstrap_port=8998, runtime="sglang"
    )
    assert status == 202

    said = (await gateway.http.get(said["location"], headers=KNOWN)).json()
    assert (said["worker_type"], said["protocol"]) == ("prefill", "sglang")
    assert (said["bootstrap_port"], said["is_healthy"]) == (8998, False)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "'url'"),
        ({"url": "grpc://127.0.0.1:1"}, "not a URL like"),
        ({"url": "http://127.0.0.1:1", "worker_type": "encode"}, "'worker_type'"),
        ({"url": "http://127.0.0.1:1", "bootstrap_port": 0}, "'bootstrap_port'"),
        ({"url": "http://127.0.0.1:1", "api_key": "secret"}, "engine_key_file"),
        ({"url": "http://127.0.0.1:1", "worker_type": "prefill", "protocol": "none"}, "none"),
        ({"url": "http://127.0.0.1:1", "models": ["b"]}, "'models'"),
        ({"url": "http://127.0.0.1:1", "labels": {"a": 1}}, "'labels.a'"),
    ],
)
async def test_what_cannot_be_an_engine_is_refused_by_name(
    gateway: Gateway, fields: dict[str, Any], words: str
) -> None:
    status, said = await add(gateway, **fields)

    assert status == 400
    assert words in said["error"]["message"]
    assert (await listed(gateway))["total"] == 1


async def test_an_engine_of_the_configuration_stays_and_is_not_added_twice(
    gateway: Gateway,
) -> None:
    answer = await gateway.http.delete("/workers/plain-0", headers=KNOWN)
    assert answer.status_code == 400
    assert "is configured" in answer.json()["error"]["message"]

    status, said = await add(gateway, url=gateway.engines[0].url)
    assert (status, "known already, as 'plain-0'" in said["error"]["message"]) == (400, True)


async def test_strangers_neither_see_nor_add_engines(gateway: Gateway) -> None:
    for method in ("GET", "POST"):
        answer = await gateway.http.request(method, "/workers")
        assert answer.status_code == 401
    wrong = {"authorization": f"Bearer {TOKEN}x"}
    assert (await gateway.http.delete("/workers/plain-0", headers=wrong)).status_code == 401
