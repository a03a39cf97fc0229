"""Two gateways with one Redis and one storage: one of them serves batches, and the other goes on when it cannot."""

import asyncio
import json
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from openai import AsyncOpenAI

from pdgate.protocols.instance import Role
from tests.gateway.batch.batches import CLOSING, begun, ended, jsonl, line, rows
from tests.support.fleet import ANSWER, PATIENCE_SECONDS, Engine, Held, HeldCall, as_json, says
from tests.support.processes import Child, child
from tests.support.raw_server import raw_server
from tests.support.redis import RedisServer, redis_server
from tests.support.waiting import until

pytestmark = pytest.mark.slow

LINES = 12
ANSWERED = 3
AT_ONCE = 2
CONTENT = jsonl(*(line(f"q{number}", seed=number) for number in range(LINES)))


@dataclass
class Replica:
    process: Child
    url: str
    client: AsyncOpenAI

    async def leads(self) -> bool:
        async with httpx2.AsyncClient(trust_env=False) as client:
            return "\npdgate_batches{" in (await client.get(f"{self.url}/metrics")).text

    async def answered(self, batch_id: str) -> int:
        counts = (await self.client.batches.retrieve(batch_id)).request_counts
        assert counts is not None
        return counts.completed


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


@asynccontextmanager
async def replica(
    name: str, engine: Engine, redis: RedisServer, tmp_path: Path
) -> AsyncIterator[Replica]:
    """With a folder of its own."""
    command = [sys.executable, "-m", "pdgate", "serve", "--port", "0", "--plain", engine.url]
    command += ["--pdd-protocol", "plain", "--batch-concurrency", str(AT_ONCE)]
    command += ["--batch-folder", str(tmp_path / name), "--batch-state", redis.url]
    command += ["--batch-storage", f"file://{tmp_path}/shared"]
    running = child(command, name=name)
    process = await asyncio.to_thread(running.__enter__)
    try:
        said = await asyncio.to_thread(process.wait_for_line, r"listens on (http://\S+)")
        await asyncio.to_thread(process.wait_for_http, f"{said[1]}/ready")
        async with AsyncOpenAI(
            base_url=f"{said[1]}/v1", api_key="none", max_retries=0, timeout=PATIENCE_SECONDS
        ) as client:
            yield Replica(process, said[1], client)
    finally:
        process.signal(signal.SIGCONT)
        await asyncio.to_thread(running.__exit__, None, None, None)


@asynccontextmanager
async def two_replicas(
    engine: Engine, redis: RedisServer, tmp_path: Path
) -> AsyncIterator[tuple[Replica, Replica]]:
    """The first of them leads."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(raw_server(engine.serve))
        engine.url = server.url
        first = await stack.enter_async_context(replica("first", engine, redis, tmp_path))
        await until(first.leads, "the lead of the first")
        other = await stack.enter_async_context(replica("other", engine, redis, tmp_path))
        yield first, other


async def under_way(held: Held, engine: Engine, other: Replica) -> tuple[str, list[HeldCall]]:
    """A batch of which ANSWERED lines are done, and AT_ONCE with the engine."""
    batch = await begun(other.client, CONTENT)
    for _ in range(ANSWERED):
        await (await held.next()).peer.send(CLOSING)
    calls = [await held.next() for _ in range(AT_ONCE)]

    async def kept() -> bool:
        return await other.answered(batch.id) == ANSWERED

    await until(kept, "results")
    assert len(engine.calls) == ANSWERED + AT_ONCE
    assert not await other.leads()
    return batch.id, calls


async def test_a_leader_that_is_killed_costs_the_lines_under_way_alone(
    redis: RedisServer, tmp_path: Path
) -> None:
    held = Held()
    engine = Engine(Role.PLAIN, held)
    async with two_replicas(engine, redis, tmp_path) as (first, other):
        batch_id, _ = await under_way(held, engine, other)
        engine.script = says(as_json(ANSWER))
        first.process.signal(signal.SIGKILL)

        over = await ended(other.client, batch_id)

        assert over.status == "completed"
        answers = await rows(other.client, over.output_file_id)
        assert [one["custom_id"] for one in answers] == [f"q{n}" for n in range(LINES)]
        assert await other.leads()
    asked = Counter(json.loads(call.body)["seed"] for call in engine.calls)
    assert sorted(asked) == list(range(LINES))
    assert sorted(asked.values()) == [1] * (LINES - AT_ONCE) + [2] * AT_ONCE


async def test_a_leader_that_was_frozen_for_longer_than_its_lease_writes_nothing(
    redis: RedisServer, tmp_path: Path
) -> None:
    """It has answers when it goes on, of lines that the other one is about."""
    held = Held()
    engine = Engine(Role.PLAIN, held)
    async with two_replicas(engine, redis, tmp_path) as (first, other):
        batch_id, firsts = await under_way(held, engine, other)
        first.process.signal(signal.SIGSTOP)
        others = [await held.next() for _ in range(AT_ONCE)]
        assert await other.leads()
        late = {**ANSWER, "id": "late"}
        for call in firsts:
            await call.peer.send(as_json(late, b"200 OK", b"connection: close"))
        first.process.signal(signal.SIGCONT)

        await asyncio.to_thread(first.process.wait_for_line, "serves batches no more")

        assert not await first.leads()
        assert await first.answered(batch_id) == ANSWERED
        engine.script = says(as_json(ANSWER))
        for call in others:
            await call.peer.send(CLOSING)
        over = await ended(first.client, batch_id)
        assert over.status == "completed"
        answers = await rows(first.client, over.output_file_id)
        assert [one["custom_id"] for one in answers] == [f"q{n}" for n in range(LINES)]
        assert all(one["response"]["body"] == ANSWER for one in answers)
    asked = Counter(json.loads(call.body)["seed"] for call in engine.calls)
    assert sorted(asked.values()) == [1] * (LINES - AT_ONCE) + [2] * AT_ONCE
