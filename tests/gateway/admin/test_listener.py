"""A listener for admins alone: what is there is nowhere else, and the other way round."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pdgate.gateway.config import ConfigError, load
from pdgate.protocols.call import CHAT
from pdgate.protocols.instance import Role
from tests.support.fleet import PATIENCE_SECONDS, Engine, Gateway, gateway_of, question
from tests.support.processes import child

PATH = "/admin/disaggregation"
TOKEN = "correct-horse-battery-staple"
KNOWN = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    return {
        "admin_token_file": str(file),
        "admin_listen": "127.0.0.1:0",
        "debug_routes": True,
    }


@pytest.fixture
async def gateway(front_end: None, settings: dict[str, Any]) -> AsyncIterator[Gateway]:
    async with gateway_of(Engine(Role.PREFILL), Engine(Role.DECODE), **settings) as gateway:
        yield gateway


async def statuses(gateway: Gateway, base: str, headers: dict[str, str]) -> dict[str, int]:
    """Of everything that there is; the call is asked about has the id "mine"."""
    asked = {"model": "m", **question()}
    found = {CHAT: (await gateway.http.post(f"{base}{CHAT}", json=asked)).status_code}
    for path in (PATH, "/debug/calls/mine", "/v1/models", "/metrics", "/health", "/ready", "/docs"):
        answer = await gateway.http.get(f"{base}{path}", headers=headers)
        assert answer.headers["content-type"]
        found[path] = answer.status_code
    return found


async def test_each_listener_has_its_own_routes(gateway: Gateway) -> None:
    await gateway.chat({"x-request-id": "mine"})
    both = {"/metrics": 200, "/health": 200, "/ready": 200}

    assert await statuses(gateway, "", KNOWN) == {
        CHAT: 200, PATH: 404, "/debug/calls/mine": 404, "/v1/models": 200, "/docs": 200, **both,
    }  # fmt: skip
    assert await statuses(gateway, gateway.admin_url, KNOWN) == {
        CHAT: 404, PATH: 200, "/debug/calls/mine": 200, "/v1/models": 404, "/docs": 404, **both,
    }  # fmt: skip


async def test_without_the_token_admins_see_no_more_than_metrics(gateway: Gateway) -> None:
    await gateway.chat({"x-request-id": "mine"})
    for headers in ({}, {"authorization": "Bearer wrong"}):
        found = await statuses(gateway, gateway.admin_url, headers)

        assert (found[PATH], found["/debug/calls/mine"]) == (401, 401)
        assert (found["/metrics"], found["/health"]) == (200, 200)


async def test_no_spelling_of_a_path_or_host_gets_to_the_other_listener(gateway: Gateway) -> None:
    """The port that counts is the one at which the connection is."""
    admin = gateway.admin_url.removeprefix("http://")
    for path in (PATH, "//admin/disaggregation", "/%61dmin/disaggregation", "/v1/..%2fadmin/x"):
        answer = await gateway.http.get(path, headers={**KNOWN, "host": admin})

        assert (answer.status_code, path) == (404, path)
        assert answer.json()["error"]["code"] == "not_found"


async def test_metrics_may_be_for_admins_only(settings: dict[str, Any]) -> None:
    async with gateway_of(Engine(Role.PLAIN), metrics_on="admin", **settings) as gateway:
        assert (await gateway.http.get("/metrics")).status_code == 404
        assert (await gateway.http.get(f"{gateway.admin_url}/metrics")).status_code == 200


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"admin_listen": "127.0.0.1:9"}, "needs 'admin_token_file'"),
        ({"admin_listen": "127.0.0.1:8000", "admin_token_file": "TOKEN"}, "another port"),
        ({"admin_listen": "8001", "admin_token_file": "TOKEN"}, "host:port"),
        ({"metrics_on": "admin"}, "needs 'admin_listen'"),
        ({"debug_routes": True, "api_keys_file": "KEYS"}, "'debug_routes' with API keys"),
    ],
)
def test_a_listener_that_cannot_be_ends_the_start(
    settings: dict[str, Any], given: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[[api_keys]]\nname = "a"\nsha256 = "{"a" * 64}"\n')
    files = {"TOKEN": settings["admin_token_file"], "KEYS": str(keys)}
    with pytest.raises(ConfigError, match=complaint):
        load(None, {key: files.get(said, said) for key, said in given.items()})


async def test_with_several_workers_a_change_reaches_all(settings: dict[str, Any]) -> None:
    """Whichever of them the admin's connection led to."""
    command = [sys.executable, "-m", "pdgate", "serve", "--port", "0", "--workers", "2"]
    command += ["--admin-listen", "127.0.0.1:0"]
    command += ["--admin-token-file", settings["admin_token_file"]]
    with child(command, name="pdgate serve") as process:
        admin = await asyncio.to_thread(process.wait_for_line, r"for admins on (http://\S+)")
        main = await asyncio.to_thread(process.wait_for_line, r"listens on (http://\S+)")
        fresh = httpx2.Limits(max_keepalive_connections=0)
        async with httpx2.AsyncClient(
            headers=KNOWN, trust_env=False, timeout=PATIENCE_SECONDS, limits=fresh
        ) as client:
            assert (await client.get(f"{main[1]}{PATH}")).status_code == 404
            changed = await client.put(f"{admin[1]}{PATH}", json={"rule": "never"})
            in_force = 0
            async with asyncio.timeout(PATIENCE_SECONDS):
                while in_force < 20:
                    said = (await client.get(f"{admin[1]}{PATH}")).json()["rule"]
                    in_force = in_force + 1 if said == "never" else 0

    assert changed.status_code == 200
