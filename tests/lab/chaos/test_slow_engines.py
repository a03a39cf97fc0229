"""Engines that have more to do than they can, and say so little that they could be taken for dead.

Nothing of it may be given up: the bound is what is set by default, and what the calls wait is longer.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import httpx2
import pytest

from pdgate.lab.chaos import Delay, FaultProxy, Rule, running, until
from tests.lab.chaos.asking import MAX_TOKENS, PROMPTS, Asked, ask
from tests.support.ports import free_port
from tests.support.scraped import scraped

PDGATE = (sys.executable, "-m", "pdgate")
MODEL = "slow"
CALLS = 24
"""At one a second, so that they wait for twice as long as silence may take."""

STEP_MS = 250
LONG_TOKENS = 60

pytestmark = pytest.mark.slow


@asynccontextmanager
async def engine(*flags: str) -> AsyncIterator[str]:
    """Its URL."""
    port = free_port()
    command = [*PDGATE, "engine", "--served-model-name", MODEL, "--port", str(port), *flags]
    async with running(command, ready="pdgate engine ready"):
        yield f"http://127.0.0.1:{port}"


@asynccontextmanager
async def gateway(http: httpx2.AsyncClient, *flags: str) -> AsyncIterator[str]:
    async with running([*PDGATE, "serve", "--port", "0", *flags], ready="pdgate listens") as it:
        url = it.ready_line.split()[-1]

        async def ready() -> bool:
            return (await http.get(f"{url}/ready")).status_code == 200

        await until(ready, "all engines to be up")
        yield url


async def given_up(http: httpx2.AsyncClient, url: str) -> float:
    return await scraped(http, url, "pdgate_legs_given_up_total")


def client() -> httpx2.AsyncClient:
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx2.AsyncClient(timeout=300, trust_env=False, limits=limits)


@pytest.mark.parametrize("health_seconds", [0, 8], ids=["", "and a /health of 8 s"])
async def test_an_engine_with_three_times_its_load_is_not_given_up(health_seconds: int) -> None:
    """Prefill reads one prompt at a time, in a second; decode has two calls at a time."""
    of_both = ("--pdd-protocol", "vllm-nixl", "--transfer", "shm")
    reads = ("--role", "prefill", "--min-prefill-ms", "1000", "--max-num-seqs", "1")
    writes = ("--role", "decode", "--min-itl-ms", "100", "--max-num-seqs", "2")
    kv, kv_of_decode = free_port(), free_port()
    async with (
        engine(*of_both, *reads, "--kv-port", str(kv)) as prefill,
        engine(*of_both, *writes, "--kv-port", str(kv_of_decode)) as decode,
        FaultProxy(prefill) as to_prefill,
        FaultProxy(decode) as to_decode,
        client() as http,
        gateway(
            http,
            *("--pdd-protocol", "vllm-nixl"),
            *("--prefill", to_prefill.url, "--decode", to_decode.url),
        ) as url,
    ):
        answers: list[Asked] = []

        async def call(number: int) -> None:
            prompt, stream = PROMPTS[number % 2], number % 2 == 0
            answers.append(await ask(http, url, MODEL, f"{number} {prompt}", stream=stream))

        with ExitStack() as slow:
            if health_seconds:
                for proxy in (to_prefill, to_decode):
                    late = Rule(Delay(health_seconds))
                    slow.enter_context(proxy.plan(late, only=b"GET /health"))
            async with asyncio.TaskGroup() as group:
                for number in range(CALLS):
                    group.create_task(call(number))
        assert [one for one in answers if not one.finished or one.error] == []
        assert await given_up(http, url) == 0


async def test_a_long_answer_that_is_not_streamed_is_no_silence() -> None:
    """Its engine has no other call, and only its counters show that it is at work."""
    async with (
        engine("--role", "plain", "--min-itl-ms", str(STEP_MS)) as plain,
        client() as http,
        gateway(http, "--plain", plain) as url,
    ):
        assert (await ask(http, url, MODEL, PROMPTS[0])).finished
        body = {"model": MODEL, "prompt": PROMPTS[1], "max_tokens": LONG_TOKENS, "ignore_eos": True}
        answer = (await http.post(f"{url}/v1/completions", json=body)).json()
        assert answer["usage"]["completion_tokens"] == LONG_TOKENS > MAX_TOKENS
        assert await given_up(http, url) == 0
