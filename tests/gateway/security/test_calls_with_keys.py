"""A gateway that asks for API keys: what callers see, and what operators do."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pdgate.gateway.config import Settings
from pdgate.gateway.config.api_keys import ApiKeyEntry
from pdgate.gateway.security.keys import hash_of
from pdgate.protocols.call import CHAT
from pdgate.protocols.instance import Role
from tests.support.fleet import (
    PATIENCE_SECONDS,
    Engine,
    Gateway,
    Held,
    as_json,
    ask,
    gateway_of,
    question,
)

pytestmark = pytest.mark.usefixtures("front_end")

SECRET = "pdg-a-key-of-a-test"
AUTHORIZED = {"authorization": f"Bearer {SECRET}"}


def entry(**more: Any) -> ApiKeyEntry:
    return ApiKeyEntry(name="team-a", sha256=hash_of(SECRET.encode()), **more)


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    async with gateway_of(Engine(Role.PLAIN), api_keys=(entry(),)) as gateway:
        yield gateway


def error_of(answer: httpx2.Response) -> tuple[int, str, str]:
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert answer.headers["x-request-id"]
    return answer.status_code, error["type"], error["code"]


@pytest.mark.parametrize("said", ["", "Bearer wrong", SECRET])
async def test_without_a_key_no_engine_is_asked(gateway: Gateway, said: str) -> None:
    headers = {"authorization": said} if said else {}

    answers = [await gateway.chat(headers), await gateway.http.get("/v1/models", headers=headers)]

    expected = (401, "authentication_error", "invalid_api_key")
    assert [error_of(answer) for answer in answers] == [expected] * 2
    assert not gateway.engines[0].calls
    assert (await gateway.metrics())["pdgate_requests_refused_total", "401"] == 1


async def test_with_a_key_all_is_as_without_any(gateway: Gateway) -> None:
    assert (await gateway.chat(AUTHORIZED)).status_code == 200
    models = await gateway.http.get("/v1/models", headers=AUTHORIZED)
    assert [card["id"] for card in models.json()["data"]] == ["m"]


async def test_those_who_watch_need_none(gateway: Gateway) -> None:
    """Load balancers and Prometheus ask these."""
    for path in ("/health", "/ready", "/metrics"):
        assert (await gateway.http.get(path)).status_code == 200


async def test_a_refused_call_leaves_the_connection_usable(gateway: Gateway) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.wire()
        for header, status in (
            (b"authorization: Bearer wrong", b"401"),
            (b"authorization: Bearer " + SECRET.encode(), b"200"),
        ):
            writer.write(ask(header))
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert head.split()[1] == status
            length = int(head.partition(b"content-length: ")[2].split()[0])
            await reader.readexactly(length)


async def test_a_body_that_nobody_may_send_is_not_waited_for(gateway: Gateway) -> None:
    """The client asked whether it should send; it should not."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.wire()
        writer.write(ask(b"expect: 100-continue").partition(b"\r\n\r\n")[0] + b"\r\n\r\n")

        assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")


async def test_two_keys_in_one_call_are_refused(gateway: Gateway) -> None:
    headers = [(b"authorization", f"Bearer {SECRET}".encode()), (b"authorization", b"Bearer x")]
    answer = await gateway.http.post(CHAT, json=question(), headers=headers)

    assert answer.status_code == 400


async def test_a_key_for_one_model_sees_and_asks_only_that() -> None:
    engine = Engine(Role.PLAIN, None, "m", "n")
    async with gateway_of(engine, api_keys=(entry(models=("n",)),)) as gateway:
        models = await gateway.http.get("/v1/models", headers=AUTHORIZED)
        refused = await gateway.chat(AUTHORIZED, model="m")

        assert [card["id"] for card in models.json()["data"]] == ["n"]
        assert error_of(refused) == (403, "permission_error", "forbidden")
        assert (await gateway.chat(AUTHORIZED, model="n")).status_code == 200
        assert len(engine.calls) == 1


async def test_one_call_too_many_is_told_when_to_come_back() -> None:
    held = Held()
    async with gateway_of(Engine(Role.PLAIN, held), api_keys=(entry(max_calls=1),)) as gateway:
        asking = asyncio.create_task(gateway.chat(AUTHORIZED))
        call = await held.next()
        refused = await gateway.chat(AUTHORIZED)
        await call.peer.send(as_json({"choices": [{"finish_reason": "stop"}]}))

        assert error_of(refused) == (429, "rate_limit_error", "rate_limit_exceeded")
        assert refused.headers["retry-after"] == "1"
        assert (await asking).status_code == 200
        counted = await gateway.metrics()
        assert counted["pdgate_key_calls_total", "team-a"] == 1
        assert counted["pdgate_key_calls_refused_total", "team-a", "concurrency"] == 1
        assert counted["pdgate_key_calls_in_flight", "team-a"] == 0


async def test_a_call_that_its_client_left_counts_no_more() -> None:
    held = Held()
    async with gateway_of(Engine(Role.PLAIN, held), api_keys=(entry(max_calls=1),)) as gateway:
        _, writer = await gateway.wire()
        writer.write(ask(b"authorization: Bearer " + SECRET.encode()))
        call = await held.next()
        writer.close()
        await call.left

        assert (await gateway.metrics())["pdgate_key_calls_in_flight", "team-a"] == 0


async def test_the_record_has_the_name_and_nothing_has_the_key(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    async with gateway_of(Engine(Role.PLAIN), api_keys=(entry(),), call_log=True) as gateway:
        await gateway.chat(AUTHORIZED)
        await gateway.chat(AUTHORIZED, model="other")

    lines = [record.message for record in caplog.records if record.name == "pdgate.calls"]
    assert [json.loads(line)["key"] for line in lines] == ["team-a", "team-a"]
    assert SECRET not in caplog.text


def test_keys_reach_the_workers(tmp_path: Path) -> None:
    settings = Settings(api_keys=(entry(models=("a",), max_calls=3),))

    assert Settings.model_validate_json(settings.model_dump_json()) == settings
