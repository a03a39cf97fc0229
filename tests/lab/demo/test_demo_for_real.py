"""The demo with real engines: what it shows, how it ends, and that it leaves nothing behind.

Every process of a demo inherits a mark in its environment, so that those which outlive it
are found, whatever they became.
"""

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest

pytestmark = pytest.mark.slow

MARK = "PDGATE_TEST_MARK"
GIVE_UP_SECONDS = 120.0


class Demo:
    """A running `pdgate demo` and what it said so far."""

    def __init__(self, process: asyncio.subprocess.Process, mark: str) -> None:
        self.process = process
        self.mark = mark
        self.said = ""

    async def says(self, words: str) -> None:
        """Reads on until the words were said."""
        assert self.process.stdout
        while words not in self.said:
            line = await self.process.stdout.readline()
            assert line, f"it ended without saying {words!r}:\n{self.said}"
            self.said += line.decode()

    async def ends(self) -> int:
        """Reads to the end and returns the exit code."""
        assert self.process.stdout
        self.said += (await self.process.stdout.read()).decode()
        return await self.process.wait()

    def others(self) -> dict[int, str]:
        """Process id -> command line of everything it started that is alive."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().decode()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                # It ended meanwhile, or is somebody else's.
                continue
        found.pop(self.process.pid, None)
        return found

    def mapped(self) -> set[str]:
        """The files that its processes have in memory, shared memory included."""
        maps = [Path(f"/proc/{pid}/maps").read_text() for pid in self.others()]
        lines = [line.split(maxsplit=5) for text in maps for line in text.splitlines()]
        return {line[5] for line in lines if len(line) == 6}


def named_shared_memory(files: set[str]) -> set[str]:
    """Those that stay when the last process that has them is gone."""
    return {file for file in files if file.startswith("/dev/shm/") and Path(file).exists()}


@asynccontextmanager
async def demo(*args: str) -> AsyncIterator[Demo]:
    """A demo on a free port. When the block ends well, nothing may be left of it."""
    mark = uuid4().hex
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pdgate", "demo", "--port", "0", *args),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, MARK: mark},
    )
    running = Demo(process, mark)
    try:
        async with asyncio.timeout(GIVE_UP_SECONDS):
            yield running
            await running.ends()
        assert running.others() == {}
    finally:
        for pid in (*running.others(), process.pid):
            if process.returncode is None or pid != process.pid:
                os.kill(pid, signal.SIGKILL)
        await process.wait()


async def test_one_question_is_answered_and_its_way_is_told() -> None:
    async with demo("--once", "--prefills", "2", "--transfer", "tcp") as shown:
        code = await shown.ends()

    assert code == 0, shown.said
    assert "served by  prefill-" in shown.said
    assert "decode-0 (decode)" in shown.said
    assert "vllm-nixl, batch scheduling, disaggregated" in shown.said
    assert "KV moved   nothing" not in shown.said
    assert "prefill  " in shown.said


async def test_programs_read_one_line_of_json() -> None:
    """What people read is on stderr then."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pdgate", "demo", "--port", "0", "--once", "--json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(GIVE_UP_SECONDS):
        stdout, stderr = await process.communicate()

    assert process.returncode == 0, stderr
    (line,) = stdout.splitlines()
    said = json.loads(line)
    assert said["call"]["id"] == said["request_id"]
    assert said["call"]["kv"] == "handed_over"
    assert said["kv_bytes"] > 0
    assert said["text"].encode() in stderr
    assert {engine["role"] for engine in said["engines"]} == {"prefill", "decode"}


async def test_decode_first_brings_a_queue_of_its_own() -> None:
    if shutil.which("redis-server") is None:
        assert not os.environ.get("CI"), "redis-server is not installed"
        pytest.skip("redis-server is not installed")
    async with demo("--once", "--pdd-protocol", "decode-first", "--transfer", "tcp") as shown:
        code = await shown.ends()

    assert code == 0, shown.said
    assert "served by  prefill-0 (asked by decode), decode-0 (decode)" in shown.said
    assert "KV moved   nothing" not in shown.said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_it_serves_until_it_is_told_to_stop(number: signal.Signals) -> None:
    async with demo() as shown:
        await shown.says("Serving until Ctrl-C.")
        assert len(shown.others()) == 3
        mapped = shown.mapped()
        shown.process.send_signal(number)
        code = await shown.ends()

    assert code == 0, shown.said
    assert any("pdgate-kv" in file for file in mapped), "KV did not go through shared memory"
    assert named_shared_memory(mapped) == set()
    assert "curl -N http://127.0.0.1:" in shown.said


async def test_it_can_be_stopped_while_it_starts() -> None:
    async with demo() as shown:
        await shown.says("engines: 1 prefill, 1 decode")
        shown.process.send_signal(signal.SIGTERM)
        code = await shown.ends()

    assert code == 0, shown.said
    assert "served by" not in shown.said


async def test_an_engine_that_dies_ends_it_and_is_named() -> None:
    async with demo() as shown:
        await shown.says("Serving until Ctrl-C.")
        (decode,) = (pid for pid, line in shown.others().items() if "\0decode\0" in line)
        os.kill(decode, signal.SIGKILL)
        code = await shown.ends()

    assert code == 1
    assert "decode-0 was killed by signal 9. The last that it said:" in shown.said


async def test_an_engine_that_cannot_start_shows_why(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")

    async with demo("--model", str(tmp_path)) as shown:
        code = await shown.ends()

    assert code == 1
    assert "prefill-0 ended with exit code 1. The last that it said:" in shown.said
    assert "Traceback" not in shown.said.partition("The last that it said")[0]
