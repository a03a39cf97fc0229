"""`pdgate serve` as operators run it: one process or two, real signals, real ends."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pdgate.protocols.call import CHAT
from pdgate.protocols.instance import Role
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

EVENT = b'data: {"choices": [{"text": "a", "finish_reason": "stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"


@contextmanager
def serving(workers: int, prefill: Engine, decode: Engine, scratch: Path) -> Iterator[Child]:
    command = [sys.executable, "-m", "pdgate", "serve", "--port", "0"]
    command += ["--prefill", prefill.url, "--decode", decode.url, "--workers", str(workers)]
    with child(command, name="pdgate serve", env={"TMPDIR": str(scratch)}) as process:
        yield process


@asynccontextmanager
async def gateway(
    workers: int, decode: Engine, scratch: Path
) -> AsyncIterator[tuple[Child, httpx2.AsyncClient]]:
    """Ready, with a client that makes a new connection for each request."""
    prefill = Engine(Role.PREFILL)
    async with raw_server(prefill.serve) as one, raw_server(decode.serve) as other:
        prefill.url, decode.url = one.url, other.url
        running = serving(workers, prefill, decode, scratch)
        process = await asyncio.to_thread(running.__enter__)
        try:
            line = await asyncio.to_thread(process.wait_for_line, r"listens on (http://\S+)")
            fresh = httpx2.Limits(max_keepalive_connections=0)
            async with httpx2.AsyncClient(
                base_url=line[1], trust_env=False, timeout=PATIENCE_SECONDS, limits=fresh
            ) as client:
                await asyncio.to_thread(process.wait_for_http, f"{line[1]}/ready")
                yield process, client
        finally:
            await asyncio.to_thread(running.__exit__, *sys.exc_info())


def value(page: str, name: str) -> float:
    """The sum of a metric over its labels."""
    families = text_string_to_metric_families(page)
    return sum(s.value for family in families for s in family.samples if s.name == name)


def living(group: int) -> list[str]:
    """Processes of a group; a zombie is dead, it only waits for its parent to ask after it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of_group, *_ = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            # It ended while we looked.
            continue
        if int(of_group) == group and state != "Z":
            found.append(path.parent.name)
    return found


@pytest.mark.parametrize("workers", [1, 2])
async def test_who_connects_when_it_says_that_it_listens_is_answered(
    workers: int, tmp_path: Path
) -> None:
    engines = Engine(Role.PREFILL), Engine(Role.DECODE)
    for engine in engines:
        engine.url = "http://127.0.0.1:9"
    with serving(workers, *engines, tmp_path) as process:
        line = await asyncio.to_thread(process.wait_for_line, r"listens on (http://\S+)")
        async with httpx2.AsyncClient(trust_env=False, timeout=PATIENCE_SECONDS) as client:
            answer = await client.get(f"{line[1]}/health")

    assert answer.status_code == 200


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_running_stream_ends_well_after_sigterm(workers: int, tmp_path: Path) -> None:
    held = Held()
    async with gateway(workers, Engine(Role.DECODE, held), tmp_path) as (process, client):
        asking = asyncio.create_task(client.post(CHAT, json=question(stream=True)))
        call = await held.next()
        await call.peer.send(STREAM_HEAD, chunk(EVENT))

        os.kill(process.pid, signal.SIGTERM)
        await all_refuse(process, client)
        refused = await client.post(CHAT, json=question())
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        await call.peer.send(chunk(EVENT), chunk(DONE), LAST_CHUNK)

        assert (await asking).content == EVENT + EVENT + DONE
        assert await asyncio.to_thread(process.wait_for_end) == 0
        # Python's own tracker of resources outlives its parent for a moment.
        await until(lambda: not living(process.pid), "the end of all of its processes")
        assert os.listdir(tmp_path) == []


async def all_refuse(process: Child, client: httpx2.AsyncClient) -> None:
    """Waits until the only worker that is left, with its call, is not ready any more."""

    async def refused() -> bool:
        return (await client.get("/ready")).status_code == 503

    await idle_ones_end(process)
    await until(refused, "503 at /ready")


async def test_two_workers_serve_and_either_tells_what_both_counted(tmp_path: Path) -> None:
    async with gateway(2, Engine(Role.DECODE), tmp_path) as (process, client):
        makers: set[str] = set()
        calls = 0
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(makers) < 2:
                async with asyncio.TaskGroup() as group:
                    asking = [
                        group.create_task(client.post(CHAT, json=question())) for _ in range(8)
                    ]
                calls += len(asking)
                # Ids that we make begin with what is unique to the process.
                makers |= {task.result().headers["x-request-id"][:12] for task in asking}

        async def tells() -> bool:
            """A worker that is not asked tells the others twice a second."""
            page = (await client.get("/metrics")).text
            assert value(page, "pdgate_instance_up") == 2
            counts = ("pdgate_calls_total", "pdgate_call_seconds_count")
            return [value(page, name) for name in counts] == [calls, calls]

        await all_say(process, tells, f"{calls} calls")
