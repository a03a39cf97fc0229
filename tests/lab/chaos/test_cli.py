"""The command, as a user runs it."""

import asyncio
import json
import sys

import pytest

from tests.lab.chaos.test_proxy import ANSWER, ASK
from tests.support import waiting
from tests.support.raw_server import Peer, raw_server

GIVE_UP_SECONDS = waiting.PATIENCE_SECONDS
LISTENS = b"pdgate chaos listens on http://"

pytestmark = pytest.mark.slow


async def run(*flags: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pdgate", "chaos", *flags),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def test_it_disturbs_until_it_is_told_to_stop_and_sums_up() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(ANSWER)

    async with asyncio.timeout(GIVE_UP_SECONDS), raw_server(script) as engine:
        told = ("--fault", "cut", "--after-bytes", "20", "--every", "2", "--seed", "7")
        process = await run("--listen", "127.0.0.1:0", "--engine", engine.url, *told)
        try:
            assert process.stderr is not None
            line = await process.stderr.readline()
            assert line.startswith(LISTENS)
            host, port = line.decode().split()[-1].removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(ASK)
            assert await reader.readexactly(len(ANSWER)) == ANSWER
            writer.write(ASK)
            assert await reader.read() == ANSWER[:20]
            writer.close()
        finally:
            process.terminate()
            out, err = await process.communicate()

    assert process.returncode == 0
    assert err.decode().splitlines() == ["2: Cut(after_bytes=20, reset=False)"]
    assert json.loads(out) == {
        "engine": engine.url,
        "seed": 7,
        "connections": 1,
        "numbered": 2,
        "injected": {"cut": 1},
        "missed": {},
        "engine_unreachable": 0,
    }


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((), "engine"),
        (("--engine", "http://127.0.0.1:1", "--every", "3"), "--every needs --fault"),
        (("--engine", "http://127.0.0.1:1", "--fault", "delay"), "seconds"),
        (("--engine", "http://127.0.0.1:1", "--listen", "192.0.2.1:9"), "cannot listen"),
    ],
)
async def test_what_it_cannot_do_ends_it_with_2(flags: tuple[str, ...], says: str) -> None:
    async with asyncio.timeout(GIVE_UP_SECONDS):
        process = await run(*flags)
        _, err = await process.communicate()

    assert process.returncode == 2
    assert says in err.decode()
