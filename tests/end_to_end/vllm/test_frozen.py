"""An engine under streams, and one of its processes stops or ends; another engine is there.

An engine is three processes here: the API server, the core that it started, and the core's worker.
At SIGTERM the API server closes its port, ends its core, and leaves its connections open.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import httpx2
import pytest
import pytest_asyncio

from pdgate.lab.chaos import Program, running, until
from tests.end_to_end.vllm.asking import client, complete, prompt
from tests.end_to_end.vllm.engines import BLOCK, MODEL, Engine, Fleet, ready
from tests.end_to_end.vllm.parts import frozen
from tests.support.ports import LOOPBACK, free_port
from tests.support.waited import Waited, wait_for

STREAMS = 12
VOCABULARY_OF_OURS = 263
LONG_TOKENS = 1000
PDGATE = (sys.executable, "-m", "pdgate")
TOKENS = 4 * BLOCK
WAIT_SECONDS = 15.0
DEADLINE_SECONDS = 180.0

WORKER_APART = ("--distributed-executor-backend", "mp")
"""So that the worker is a process of its own, as it is where there are several."""


@pytest.fixture(scope="module")
def engine(fleet: Fleet) -> Iterator[Engine]:
    with ExitStack() as stack:
        port = free_port()
        engine = ready(fleet.start(stack, "frozen", port, WORKER_APART), port)
        # Compiling takes it seconds, which gateways would expect of its next calls.
        with client(engine.url) as direct:
            complete(direct, prompt(TOKENS, "warm"), max_tokens=4)
        yield engine


@dataclass(frozen=True, slots=True)
class Site:
    url: str
    http: httpx2.AsyncClient
    program: Program

    async def all_up(self) -> bool:
        text = (await self.http.get(f"{self.url}/metrics")).text
        up = [line for line in text.splitlines() if line.startswith("pdgate_instance_state{")]
        wanted = ('state="up"', 'state="slow_start"', 'state="trial"')
        return all(any(state in line for state in wanted) for line in up)

    async def given_up(self, why: str) -> float:
        text = (await self.http.get(f"{self.url}/metrics")).text
        lines = [line for line in text.splitlines() if line.startswith("pdgate_legs_given_up_tot")]
        return sum(float(line.split()[-1]) for line in lines if f'why="{why}"' in line)

    async def stream(
        self, number: int, salt: str, max_tokens: int, begun: Callable[[], object] = lambda: None
    ) -> Waited:
        ids = [each % VOCABULARY_OF_OURS for each in prompt(TOKENS, f"{salt} {number}")]
        return await wait_for(
            self.http, self.url, model=MODEL, prompt=ids, max_tokens=max_tokens, begun=begun
        )


@pytest_asyncio.fixture
async def site(engine: Engine) -> AsyncIterator[Site]:
    """The other engine is one of ours, which starts in a second."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    other = f"http://{LOOPBACK}:{(port := free_port())}"
    one_of_ours = [*PDGATE, "engine", "--served-model-name", MODEL, "--port", str(port)]
    serve = [
        *(*PDGATE, "serve", "--port", "0", "--slow-start", "0"),
        *("--plain-policy", "round_robin", "--plain", engine.url, "--plain", other),
    ]
    async with (
        running(one_of_ours, ready="pdgate engine ready"),
        running(serve, ready="pdgate listens on ") as program,
        httpx2.AsyncClient(timeout=DEADLINE_SECONDS, trust_env=False, limits=limits) as http,
    ):
        site = Site(program.ready_line.split()[-1], http, program)
        await until(site.all_up, "all engines to be up")
        # So that it is known how fast they are. One after another: of twelve at once on a busy machine each
        # takes seconds, and an engine of that pace is waited for longer by right.
        for number in range(STREAMS):
            await site.stream(number, f"warm {program.pid}", 4)
        yield site


async def under_streams(site: Site, salt: str, strike: Callable[[], object]) -> list[Waited]:
    """Half of them have begun when it strikes, and are far from their end; the others come then."""
    begun = asyncio.Semaphore(0)
    async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as group:
        early = range(STREAMS // 2)
        tasks = [group.create_task(site.stream(n, salt, LONG_TOKENS, begun.release)) for n in early]
        for _ in early:
            await begun.acquire()
        strike()
        late = range(STREAMS // 2, STREAMS)
        tasks += [group.create_task(site.stream(n, salt, 24)) for n in late]
    return [task.result() for task in tasks]


def check(answers: list[Waited]) -> None:
    lost = [one for one in answers if not one.is_whole and not one.broke_off]
    assert lost == []
    assert max(one.silence for one in answers) < WAIT_SECONDS


@pytest.mark.parametrize(
    ("part", "why"), [("EngineCore", "stuck"), ("Worker", "stuck"), ("API server", "frozen")]
)
async def test_calls_do_not_wait_for_a_core_that_stands_still(
    engine: Engine, site: Site, part: str, why: str
) -> None:
    with ExitStack() as struck:
        stop = partial(struck.enter_context, frozen(engine, part))
        check(await under_streams(site, f"{site.program.pid} {part}", stop))
        assert await site.given_up(why) > 0
    await until(site.all_up, "the engine to be used again")


async def test_a_decode_that_is_told_to_end_hangs_nobody(engine: Engine, site: Site) -> None:
    """(Last: it takes the engine. What D does at SIGTERM is what each of vLLM's engines does.)"""
    end = partial(os.kill, engine.process.pid, signal.SIGTERM)
    answers = await under_streams(site, "ends", end)
    check(answers)
    assert [one for one in answers if one.broke_off] != []
