"""`pdgate batch FILE`, for users who have no client."""

import asyncio
import json
from pathlib import Path

from typer.testing import CliRunner, Result

from pdgate.__main__ import app
from pdgate.gateway.config.sections import Batch
from pdgate.protocols.instance import Role
from tests.gateway.batch.batches import jsonl, line
from tests.support.fleet import ANSWER, Engine, Gateway, gateway_of


async def said_by(gateway: Gateway, *args: str) -> Result:
    at = ("--gateway", f"http://127.0.0.1:{gateway.port}")
    return await asyncio.to_thread(CliRunner().invoke, app, ["batch", *args, *at])


async def test_a_file_goes_in_and_answers_come_out(tmp_path: Path) -> None:
    calls, answers = tmp_path / "calls.jsonl", tmp_path / "answers.jsonl"
    calls.write_bytes(jsonl(line("a"), line("b")))
    async with gateway_of(Engine(Role.PLAIN), batch=Batch(folder=str(tmp_path / "b"))) as gateway:
        done = await said_by(gateway, str(calls), "--output", str(answers))

        assert done.exit_code == 0, done.output
        assert "completed: 2 of 2 lines have an answer" in done.stderr
        rows = [json.loads(row) for row in answers.read_text().splitlines()]
        assert [row["custom_id"] for row in rows] == ["a", "b"]
        assert rows[0]["response"]["body"] == ANSWER
        batch_id = done.stderr.split()[2]
        again = await said_by(gateway, batch_id)
        assert again.exit_code == 0, again.output
        assert again.stdout == answers.read_text()


async def test_what_goes_wrong_is_said_in_a_line(tmp_path: Path) -> None:
    calls = tmp_path / "calls.jsonl"
    calls.write_bytes(jsonl(b"{", line("a")))
    async with gateway_of(Engine(Role.PLAIN), batch=Batch(folder=str(tmp_path / "b"))) as gateway:
        broken = await said_by(gateway, str(calls))
        assert broken.exit_code == 1
        assert "invalid_line" in broken.stderr
        assert json.loads(broken.stdout)["custom_id"] == "a"
        gone = await said_by(gateway, str(tmp_path / "gone"))
        assert gone.exit_code == 2
        assert "cannot read" in gone.stderr
        unknown = await said_by(gateway, "batch_of_nobody")
        assert unknown.exit_code == 2
        assert "no such batch" in unknown.stderr
        calls.write_bytes(b"{}")
        assert (await said_by(gateway, str(calls))).exit_code == 2
    async with gateway_of(Engine(Role.PLAIN)) as gateway:
        calls.write_bytes(jsonl(line("a")))
        off = await said_by(gateway, str(calls))
        assert off.exit_code == 2
        assert "--batch-folder" in off.stderr
