"""Streams of stock vLLM that are cut anywhere go on as if nothing had happened.

Its tiny model speaks half characters and worse, and merges tokens when it is busy. One engine
behind two proxies stands for two; what the ways over P and D add is tests/lab/chaos' matter.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack
from random import Random
from typing import Any

import httpx2
import pytest_asyncio

from pdgate.lab.chaos import Cut, FaultProxy, Rule, running, until
from pdgate.protocols.call import CHAT, COMPLETIONS
from tests.end_to_end.vllm.engines import MODEL, Engine
from tests.support.heard import Heard, heard

SEED = 11
CUTS = 6
PROMPT = "Grüße, the quick brown fox \N{EARTH GLOBE EUROPE-AFRICA}"


class Cutting:
    """A gateway over two proxies, both of which cut one answer."""

    def __init__(self, url: str, proxies: list[FaultProxy], http: httpx2.AsyncClient) -> None:
        self.url = url
        self._proxies = proxies
        self._http = http

    async def ask(self, url: str, path: str) -> Heard:
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": PROMPT}]}
        body = {
            "model": MODEL,
            **(asked if path == CHAT else {"prompt": PROMPT}),
            "max_tokens": 60,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        answer = await self._http.post(f"{url}{path}", json=body)
        assert answer.status_code == 200, answer.text
        return heard(answer.content)

    async def ask_and_cut(self, path: str, after_bytes: int) -> Heard:
        with ExitStack() as plans:
            for proxy in self._proxies:
                plans.enter_context(proxy.plan(Rule(Cut(after_bytes), last=1)))
            return await self.ask(self.url, path)


@pytest_asyncio.fixture
async def cutting(alone: Engine) -> AsyncIterator[Cutting]:
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx2.AsyncClient(timeout=120, trust_env=False))
        proxies = [await stack.enter_async_context(FaultProxy(alone.url)) for _ in "12"]
        plain = [part for proxy in proxies for part in ("--plain", proxy.url)]
        command = [
            *(sys.executable, "-m", "pdgate", "serve", "--port", "0", "--resume"),
            *("--pdd-protocol", "plain", "--health-timeout", "20", *plain),
        ]
        program = await stack.enter_async_context(running(command, ready="pdgate listens on "))
        url = program.ready_line.split()[-1]

        async def ready() -> bool:
            return (await http.get(f"{url}/ready")).status_code == 200

        await until(ready, "the engines to be up")
        yield Cutting(url, proxies, http)


async def test_a_stream_that_is_cut_anywhere_reads_like_a_whole_one(
    alone: Engine, cutting: Cutting
) -> None:
    """Cut twice, in fact: whoever goes on is cut at the same place."""
    random = Random(SEED)
    for path in (CHAT, COMPLETIONS):
        whole = await cutting.ask(alone.url, path)
        for _ in range(CUTS):
            after_bytes = random.randrange(1500, 12_000)

            broken = await cutting.ask_and_cut(path, after_bytes)

            assert broken == whole, f"{path} cut after {after_bytes} bytes"
            assert len(broken.heads) == 1
