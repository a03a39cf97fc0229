"""Operators take engines out of use, and put them back, without disturbing what runs there."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pdgate.gateway.admin.instances import Drained
from pdgate.protocols.instance import Role
from tests.support.fleet import PATIENCE_SECONDS, Engine, Gateway, Held, as_json, gateway_of

TOKEN = "correct-horse-battery-staple"
KNOWN = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    return str(path)


@pytest.fixture
async def gateway(token_file: str) -> AsyncIterator[Gateway]:
    engines = Engine(Role.PLAIN), Engine(Role.PLAIN)
    # In turn, so that both are asked while both may be.
    turns = "round_robin"
    async with gateway_of(*engines, admin_token_file=token_file, plain_policy=turns) as gateway:
        yield gateway


async def say(gateway: Gateway, word: str, instance: str = "plain-0") -> dict[str, Any]:
    answer = await gateway.http.post(f"/admin/instances/{instance}/{word}", headers=KNOWN)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def asked(gateway: Gateway, calls: int = 6) -> list[int]:
    """How many of these calls each engine has got."""
    before = [len(engine.calls) for engine in gateway.engines]
    for _ in range(calls):
        assert (await gateway.chat()).status_code == 200
    return [len(e.calls) - b for e, b in zip(gateway.engines, before, strict=True)]


async def test_all_engines_are_shown_with_what_they_are_doing(gateway: Gateway) -> None:
    answer = await gateway.http.get("/admin/instances", headers=KNOWN)

    shown = answer.json()[0]
    told = {name: shown.pop(name) for name in ("told_seconds_ago", "load", "kv")}
    assert (told["told_seconds_ago"], told["load"], told["kv"]["result"]) == (None, None, None)
    assert shown == {
        "id": "plain-0",
        "role": "plain",
        "protocol": "plain",
        "generation": "",
        "kv_address": "",
        "url": gateway.engines[0].url,
        "state": "up",
        "models": ["m"],
        "calls": 0,
        "ejections": {},
    }


async def test_a_drained_engine_gets_no_calls_until_it_is_undrained(gateway: Gateway) -> None:
    assert (await say(gateway, "drain"))["state"] == "drained"
    # Again, to the same end.
    assert (await say(gateway, "drain"))["state"] == "drained"
    assert await asked(gateway) == [0, 6]

    assert (await say(gateway, "undrain"))["state"] == "up"
    assert all(await asked(gateway))


async def test_what_runs_there_ends_well(token_file: str) -> None:
    held = Held()
    async with gateway_of(Engine(Role.PLAIN, held), admin_token_file=token_file) as gateway:
        asking = asyncio.create_task(gateway.chat())
        call = await held.next()

        assert (await say(gateway, "drain"))["calls"] == 1
        assert (await gateway.chat()).status_code == 503
        assert (await gateway.http.get("/ready")).status_code == 503

        await call.peer.send(as_json({"choices": [{"finish_reason": "stop"}]}))
        assert (await asking).status_code == 200


async def test_an_engine_that_nobody_knows_cannot_be_drained(gateway: Gateway) -> None:
    answer = await gateway.http.post("/admin/instances/nobody/drain", headers=KNOWN)

    assert answer.status_code == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/admin/instances"),
        ("POST", "/admin/instances/plain-0/drain"),
        ("POST", "/admin/instances/plain-0/undrain"),
        ("POST", "/admin/drain"),
    ],
)
async def test_only_who_knows_the_token_may(gateway: Gateway, method: str, path: str) -> None:
    assert (await gateway.http.request(method, path)).status_code == 401
    assert (await gateway.http.get("/ready")).status_code == 200
    assert all(await asked(gateway))


async def test_the_gateway_itself_can_be_drained(gateway: Gateway) -> None:
    finished = asyncio.Event()
    gateway.drain.finish = finished.set

    assert (await gateway.http.post("/admin/drain", headers=KNOWN)).status_code == 202

    assert (await gateway.chat()).status_code == 503
    async with asyncio.timeout(PATIENCE_SECONDS):
        await finished.wait()


def test_drained_ids_are_kept_once() -> None:
    assert Drained().also("a").also("b").also("a").instances == ("b", "a")
    assert Drained(instances=("a", "b")).without("a").instances == ("b",)
