"""Real processes and signals: whatever one of a gateway's processes is told, all of them do."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from pdgate.protocols.call import CHAT
from pdgate.protocols.instance import Role
from tests.support.answers import piece
from tests.support.fleet import (
    LAST_CHUNK,
    PATIENCE_SECONDS,
    STREAM_HEAD,
    Engine,
    Held,
    question,
)
from tests.support.processes import Child, child
from tests.support.raw_server import chunk, raw_server
from tests.support.waiting import until
from tests.support.workers import all_say, idle_ones_end

pytestmark = pytest.mark.slow

TOKEN = "correct-horse-battery-staple"
KNOWN = {"authorization": f"Bearer {TOKEN}"}


class Site:
    def __init__(self, folder: Path, engines: list[Engine], workers: int) -> None:
        self.path = folder / "pdgate.toml"
        self.token = folder / "token"
        self.token.write_text(TOKEN)
        self._engines, self._workers = engines, workers
        self.process: Child
        self.http: httpx2.AsyncClient

    def write(self, *numbers: int, more: str = "") -> None:
        """The configuration, with these engines."""
        text = f"admin_token_file = {json.dumps(str(self.token))}\n{more}\n"
        for number in numbers:
            engine = self._engines[number]
            text += f'[[instances]]\nrole = "plain"\nid = "e{number}"\nurl = "{engine.url}"\n'
        self.path.write_text(f"{text}[listen]\nport = 0\nworkers = {self._workers}\n")

    async def post(self, path: str) -> httpx2.Response:
        return await self.http.post(path, headers=KNOWN)

    async def ids(self) -> list[str]:
        answer = await self.http.get("/admin/instances", headers=KNOWN)
        return [one["id"] for one in answer.json() if one["state"] != "drained"]

    async def all_use(self, *ids: str) -> None:
        """Waits until all workers send calls to these engines."""

        async def used() -> bool:
            return await self.ids() == list(ids)

        await all_say(self.process, used, f"calls to {ids}")

    async def refuses(self) -> bool:
        return (await self.http.get("/ready")).status_code == 503


@asynccontextmanager
async def site_of(folder: Path, *engines: Engine, workers: int) -> AsyncIterator[Site]:
    """Engine 0 is configured at first."""
    site = Site(folder, list(engines), workers)
    fresh = httpx2.Limits(max_keepalive_connections=0)
    async with raw_server(engines[0].serve) as one, raw_server(engines[-1].serve) as other:
        engines[-1].url, engines[0].url = other.url, one.url
        site.write(0)
        command = [sys.executable, "-m", "pdgate", "serve", "--config", str(site.path)]
        running = child(command, name="pdgate serve")
        site.process = await asyncio.to_thread(running.__enter__)
        try:
            line = await asyncio.to_thread(site.process.wait_for_line, r"listens on (http://\S+)")
            async with httpx2.AsyncClient(
                base_url=line[1], trust_env=False, timeout=PATIENCE_SECONDS, limits=fresh
            ) as site.http:
                # One answers, while the other may still be on its way.
                begun = rf"(?s:(startup complete.*){{{workers}}})"
                await asyncio.to_thread(site.process.wait_for_line, begun)
                await asyncio.to_thread(site.process.wait_for_http, f"{line[1]}/ready")
                yield site
        finally:
            await asyncio.to_thread(running.__exit__, *sys.exc_info())


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_reload_reaches_all_processes_and_a_bad_file_none(
    workers: int, tmp_path: Path
) -> None:
    engines = Engine(Role.PLAIN), Engine(Role.PLAIN)
    async with site_of(tmp_path, *engines, workers=workers) as site:
        site.write(0, 1)
        os.kill(site.process.pid, signal.SIGHUP)
        await site.all_use("e0", "e1")

        site.write(more="max_attempt = 1")
        os.kill(site.process.pid, signal.SIGHUP)
        # Before the file is another one, which it would read then.
        await asyncio.to_thread(site.process.wait_for_line, "stays as it was: unknown key")
        refused = await site.post("/admin/reload")
        assert refused.status_code == 400
        assert "'max_attempts'" in refused.json()["error"]["message"]
        await site.all_use("e0", "e1")

        site.write(1)
        assert (await site.post("/admin/reload")).json() == {"changed": ["instances"]}
        await site.all_use("e1")


async def test_what_one_worker_drains_all_drain(tmp_path: Path) -> None:
    """First an engine, then the gateway itself, which ends with its last stream."""
    held = Held()
    async with site_of(tmp_path, Engine(Role.PLAIN, held), workers=2) as site:
        assert (await site.post("/admin/instances/e0/drain")).json()["state"] == "drained"
        await site.all_use()
        await site.post("/admin/instances/e0/undrain")
        await site.all_use("e0")

        asking = asyncio.create_task(site.http.post(CHAT, json=question(stream=True)))
        call = await held.next()
        await call.peer.send(STREAM_HEAD, chunk(piece("a", "stop")))

        assert (await site.post("/admin/drain")).status_code == 202
        await idle_ones_end(site.process)
        await until(site.refuses, "503 at /ready")

        await call.peer.send(chunk(b"data: [DONE]\n\n"), LAST_CHUNK)
        assert (await asking).content == piece("a", "stop") + b"data: [DONE]\n\n"
        assert await asyncio.to_thread(site.process.wait_for_end) == 0
