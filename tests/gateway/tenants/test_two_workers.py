"""Limits of tokens in two worker processes, and after a restart."""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pdgate.gateway.security.keys import hash_of
from pdgate.protocols.call import CHAT
from pdgate.protocols.instance import Role
from tests.support.fleet import ANSWER, PATIENCE_SECONDS, Engine, Held, as_json, question, says
from tests.support.processes import child
from tests.support.raw_server import raw_server
from tests.support.waiting import until

pytestmark = pytest.mark.slow

SECRET, TOKEN = "pdg-of-team-a", "of-the-admin-of-the-tests"
KEY, ADMIN = {"authorization": f"Bearer {SECRET}"}, {"authorization": f"Bearer {TOKEN}"}
USAGE = {"prompt_tokens": 10, "completion_tokens": 5}
BUDGET = 1000


@asynccontextmanager
async def two_workers(
    engine: Engine, folder: Path, limits: str = f"budget_tokens = {BUDGET}"
) -> AsyncIterator[httpx2.AsyncClient]:
    """With a client that makes a new connection for each request, and so meets both."""
    (folder / "token").write_text(TOKEN)
    (folder / "keys.toml").write_text(
        f'[[api_keys]]\nname = "team-a"\nsha256 = "{hash_of(SECRET.encode())}"\n{limits}\n'
    )
    command = [sys.executable, "-m", "pdgate", "serve", "--port", "0", "--workers", "2"]
    command += ["--plain", engine.url, "--api-keys-file", str(folder / "keys.toml")]
    command += ["--admin-token-file", str(folder / "token"), "--state-dir", str(folder / "state")]
    fresh = httpx2.Limits(max_keepalive_connections=0)
    with child(command, name="pdgate serve", env={"TMPDIR": str(folder)}) as process:
        line = await asyncio.to_thread(process.wait_for_line, r"listens on (http://\S+)")
        async with httpx2.AsyncClient(
            base_url=line[1], trust_env=False, timeout=PATIENCE_SECONDS, limits=fresh
        ) as client:

            async def ready() -> bool:
                return (await client.get("/ready")).status_code == 200

            await until(ready, "a gateway that is ready")
            yield client


async def usage(client: httpx2.AsyncClient) -> dict[str, Any]:
    (found,) = (await client.get("/admin/usage", headers=ADMIN)).json()["usage"]
    return dict(found)


async def test_two_workers_hold_a_key_to_one_budget_which_a_restart_does_not_forget(
    tmp_path: Path,
) -> None:
    engine = Engine(Role.PLAIN, held := Held())
    async with raw_server(engine.serve) as server:
        engine.url = server.url
        async with two_workers(engine, tmp_path) as client:

            async def ask(**fields: Any) -> int:
                body = question(max_tokens=230, **fields)
                return (await client.post(CHAT, json=body, headers=KEY)).status_code

            asking = [asyncio.create_task(ask()) for _ in range(24)]
            running = [await held.next() for _ in range(4)]
            await until(lambda: sum(one.done() for one in asking) == 20, "refusals")
            held_now = (await usage(client))["held"]
            for call in running:
                await call.peer.send(as_json({**ANSWER, "usage": USAGE}))
            statuses = Counter([await one for one in asking])

            async def over() -> bool:
                found = await usage(client)
                return bool(found["total"]["calls"] == 4 and not found["held"]["generated"])

            await until(over, "calls that are over, in both workers")

        engine.script = says(as_json({**ANSWER, "usage": USAGE}))
        async with two_workers(engine, tmp_path) as client:
            after = await usage(client)
            large = await client.post(CHAT, json=question(max_tokens=960), headers=KEY)

    assert statuses == {200: 4, 429: 20}
    assert held_now["generated"] == 4 * 230
    assert after["total"] == {"prompt": 40, "cached": 0, "generated": 20, "calls": 4}
    assert large.json()["error"]["code"] == "insufficient_quota"


async def test_each_worker_tells_its_own_calls_of_the_minute(tmp_path: Path) -> None:
    """Its half of them, which is what it lets in."""
    engine = Engine(Role.PLAIN)
    async with raw_server(engine.serve) as server:
        engine.url = server.url
        async with two_workers(engine, tmp_path, "calls_per_minute = 4") as client:
            left: list[str] = []

            async def all_used() -> bool:
                answer = await client.post(CHAT, json=question(), headers=KEY)
                said = answer.headers
                assert said["x-ratelimit-limit-requests"] == "2"
                if answer.status_code == 200:
                    left.append(said["x-ratelimit-remaining-requests"])
                else:
                    assert said["x-ratelimit-remaining-requests"] == "0"
                return len(left) == 4

            await until(all_used, "four calls")
    assert sorted(left) == ["0", "0", "1", "1"]
