"""Two real workers: whichever is asked tells of both, and none waits for who watches at its end."""

import asyncio
import signal
import sys
from functools import partial
from pathlib import Path

import httpx2
import pytest

from pdgate.protocols.instance import Role
from tests.gateway.console.watching import KNOWN, TOKEN, one_with, pictures
from tests.support.fleet import PATIENCE_SECONDS, Engine, Held, as_json, question
from tests.support.processes import child
from tests.support.raw_server import raw_server
from tests.support.waiting import until

pytestmark = pytest.mark.slow

CALLS = 12
"""So many connections that both workers have some of them, but for one time in two thousand."""


async def test_any_worker_tells_of_the_calls_of_all(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN)
    held = Held()
    engine = Engine(Role.PLAIN, held)
    async with raw_server(engine.serve) as server:
        command = [sys.executable, "-m", "pdgate", "serve", "--port", "0", "--workers", "2"]
        command += ["--plain", server.url, "--admin-token-file", str(token_file)]
        with child(command, name="pdgate serve") as process:
            line = await asyncio.to_thread(process.wait_for_line, r"pdgate listens on (http://\S+)")
            await asyncio.to_thread(process.wait_for_http, f"{line[1]}/ready")
            fresh = httpx2.Limits(max_keepalive_connections=0)
            async with (
                httpx2.AsyncClient(
                    base_url=line[1], trust_env=False, timeout=PATIENCE_SECONDS, limits=fresh
                ) as http,
                asyncio.TaskGroup() as group,
                pictures(http) as told,
            ):
                # One answers, while the other may still be on its way.
                await one_with(told, lambda one: one["workers"] == {"told": 2, "silent": 0})
                asked = [group.create_task(_ask(http, f"call-{n}")) for n in range(CALLS)]
                calls = [await held.next() for _ in range(CALLS)]
                # A worker that is late on a busy machine is left out of a picture, and not of all.
                both = {"told": 2, "silent": 0}
                seen = await one_with(
                    told, lambda one: one["in_flight"] == CALLS and one["workers"] == both
                )
                names = {call["id"] for call in seen["calls"]["running"]}
                assert names == {f"call-{n}" for n in range(CALLS)}
                for call in calls:
                    await call.peer.send(as_json({"choices": [{"finish_reason": "stop"}]}))
                seen = await one_with(told, lambda one: len(one["calls"]["ended"]) == CALLS)
                assert [await one for one in asked] == [200] * CALLS
                for name in sorted(names):
                    # Half of them are asked of who did not serve them, and may be late to say so.
                    await until(partial(_told_of, http, name), name)

                # Who still watches does not keep it from ending.
                process.process.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(process.wait_for_end, PATIENCE_SECONDS) == 0
            assert "Cancel" not in process.tail()


async def _told_of(http: httpx2.AsyncClient, name: str) -> bool:
    found = await http.get(f"/admin/calls/{name}", headers=KNOWN)
    return found.status_code == 200 and found.json()["id"] == name


async def _ask(http: httpx2.AsyncClient, name: str) -> int:
    body = question()
    answer = await http.post("/v1/chat/completions", json=body, headers={"x-request-id": name})
    return answer.status_code
