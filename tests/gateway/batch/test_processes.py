"""Batches of real processes: several workers, a kill -9 in the middle, and the same folder again."""

import asyncio
import json
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from pdgate.protocols.instance import Role
from tests.gateway.batch.batches import CLOSING, begun, ended, jsonl, line, rows
from tests.support.fleet import ANSWER, PATIENCE_SECONDS, Engine, Held, as_json, says
from tests.support.processes import Child, child
from tests.support.raw_server import raw_server
from tests.support.waiting import until

pytestmark = pytest.mark.slow

LINES = 12
ANSWERED = 3
AT_ONCE = 2


@asynccontextmanager
async def serving(engine: Engine, folder: Path) -> AsyncIterator[tuple[Child, AsyncOpenAI]]:
    command = [sys.executable, "-m", "pdgate", "serve", "--port", "0", "--workers", "2"]
    command += ["--plain", engine.url, "--pdd-protocol", "plain", "--batch-folder", str(folder)]
    running = child([*command, "--batch-concurrency", str(AT_ONCE)], name="pdgate serve")
    process = await asyncio.to_thread(running.__enter__)
    try:
        said = await asyncio.to_thread(process.wait_for_line, r"listens on (http://\S+)")
        await asyncio.to_thread(process.wait_for_http, f"{said[1]}/ready")
        async with AsyncOpenAI(
            base_url=f"{said[1]}/v1", api_key="none", max_retries=0, timeout=PATIENCE_SECONDS
        ) as client:
            yield process, client
    finally:
        await asyncio.to_thread(running.__exit__, None, None, None)


async def test_a_kill_of_all_workers_costs_the_lines_under_way_alone(tmp_path: Path) -> None:
    """Each custom_id is once in the output, and no line was asked by two workers."""
    held = Held()
    engine = Engine(Role.PLAIN, held)
    async with raw_server(engine.serve) as server:
        engine.url = server.url
        async with serving(engine, tmp_path) as (process, client):
            content = jsonl(*(line(f"q{number}", seed=number) for number in range(LINES)))
            batch = await begun(client, content)
            for _ in range(ANSWERED):
                await (await held.next()).peer.send(CLOSING)
            await until(lambda: len(engine.calls) == ANSWERED + AT_ONCE, "two lines under way")

            async def kept() -> bool:
                counts = (await client.batches.retrieve(batch.id)).request_counts
                return counts is not None and counts.completed == ANSWERED

            await until(kept, "results")
            process.signal(signal.SIGKILL)
            await asyncio.to_thread(process.wait_for_end)
        engine.script = says(as_json(ANSWER))
        async with serving(engine, tmp_path) as (_, client):
            over = await ended(client, batch.id)

            assert over.status == "completed"
            answers = await rows(client, over.output_file_id)
            assert [one["custom_id"] for one in answers] == [f"q{n}" for n in range(LINES)]
            asked = Counter(json.loads(call.body)["seed"] for call in engine.calls)
            assert sorted(asked) == list(range(LINES))
            assert sorted(asked.values()) == [1] * (LINES - AT_ONCE) + [2] * AT_ONCE
