"""40 streams over engines to one of which the network swallows everything, from a moment on.

Nothing refuses and nothing answers: connections that stand are silent, new ones are never made. The
bound is the one that is set by default; broken streams go on at the other decode engine. KV stays on
loopback.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import httpx2
import pytest

from pdgate.lab.chaos import Program, running, until
from tests.lab.chaos.asking import numbered
from tests.support.black_hole import Host, host
from tests.support.freezing import freeze, thaw
from tests.support.ports import LOOPBACK, free_port
from tests.support.scraped import scraped
from tests.support.waited import Waited, wait_for

ADDRESS = "10.77.0.9"
PDGATE = (sys.executable, "-m", "pdgate")
MODEL = "pdgate-tiny"
TOKENS = 24
STREAMS = 40
LATE = 10
"""Besides, when the way is gone already."""

WAIT_SECONDS = 15.0
DEADLINE_SECONDS = 120.0

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hole() -> Iterator[Host]:
    with host(ADDRESS) as hole:
        yield hole


@asynccontextmanager
async def engine(role: str, address: str = LOOPBACK) -> AsyncIterator[tuple[str, Program]]:
    """Its URL, and its process."""
    port = free_port()
    protocol = "plain" if role == "plain" else "vllm-nixl"
    command = [
        *(*PDGATE, "engine", "--role", role, "--pdd-protocol", protocol, "--transfer", "shm"),
        *("--host", address, "--port", str(port), "--shutdown-timeout", "0"),
    ]
    if role == "decode":
        command += ["--min-itl-ms", "20"]
    async with running(command, ready="pdgate engine ready") as program:
        yield f"http://{address}:{port}", program


@asynccontextmanager
async def gateway(http: httpx2.AsyncClient, *flags: str) -> AsyncIterator[str]:
    serve = [*PDGATE, "serve", "--port", "0", "--pdd-protocol", "vllm-nixl", "--resume", *flags]
    even = ("--prefill-policy", "round_robin", "--decode-policy", "round_robin")
    async with running([*serve, *even], ready="pdgate listens on ") as program:
        url = program.ready_line.split()[-1]

        async def all_up() -> bool:
            return await scraped(http, url, "pdgate_instance_up") == 3

        await until(all_up, "all engines to be up")
        yield url


@contextmanager
def stopped(program: Program) -> Iterator[None]:
    freeze(program.pid)
    try:
        yield
    finally:
        thaw(program.pid)


@pytest.mark.parametrize(("role", "away"), [("prefill", True), ("decode", True), ("decode", False)])
async def test_no_call_waits_for_an_engine_to_which_there_is_no_way(
    hole: Host, role: str, away: bool
) -> None:
    """Nor, with streams that go on elsewhere, for one whose process is stopped."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    other = {"prefill": "decode", "decode": "prefill"}[role]
    async with (
        httpx2.AsyncClient(timeout=DEADLINE_SECONDS, trust_env=False, limits=limits) as http,
        engine("plain") as (alone, _),
        engine(role, ADDRESS) as (victim, program),
        engine(role) as (beside, _),
        engine(other) as (partner, _),
        gateway(http, f"--{role}", victim, f"--{role}", beside, f"--{other}", partner) as url,
        asyncio.timeout(DEADLINE_SECONDS),
    ):
        begun = 0
        some = asyncio.Event()

        def begins() -> None:
            nonlocal begun
            begun += 1
            if begun >= STREAMS // 4:
                some.set()

        async def ask(at: str, number: int) -> Waited:
            prompt = numbered(number)
            return await wait_for(
                http, at, prompt=prompt, max_tokens=TOKENS, begun=begins, model=MODEL
            )

        async with asyncio.TaskGroup() as group:
            right = [group.create_task(ask(alone, n)) for n in range(STREAMS + LATE)]
        begun = 0
        some.clear()
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(ask(url, n)) for n in range(STREAMS)]
            await some.wait()
            with hole.open() if away else stopped(program):
                asking += [group.create_task(ask(url, n)) for n in range(STREAMS, STREAMS + LATE)]
                await asyncio.wait(asking)
        alone_said = [task.result() for task in right]
        pairs = [(task.result(), well) for task, well in zip(asking, alone_said, strict=True)]
        assert [one for one, well in pairs if not one.is_whole or one.text != well.text] == []
        # What the same calls take on this machine where nothing is wrong is no wait.
        usual = max(one.silence for one in alone_said)
        assert max(one.silence for one, _ in pairs) < WAIT_SECONDS + usual
        assert await scraped(http, url, "pdgate_legs_given_up_total", why="frozen") > 0
