"""What it saves to read the last turn's KV back from decode, beside computing it again (`--read-back`).

    python -m benchmarks.read_back [--tokens 200 2000 8000] [--times 5]

One decode and two prefill engines of the reference kind, and two gateways before them, of which one reads back. A conversation's first
turn is read by one prefill engine, its second by the other. Told is the median of the seconds until the second turn's first
token, and how many of its prompt tokens were computed. Conversations are new each time, so nothing is cached but what a turn leaves.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Final

import httpx2

from pdgate.lab.demo.run import LISTENS, READY, DemoEngine
from pdgate.lab.processes import running

PDGATE: Final = (sys.executable, "-m", "pdgate")
LIMIT_TOKENS: Final = 16_384
ANSWER_TOKENS: Final = 16


@dataclass(frozen=True, slots=True)
class Site:
    http: httpx2.AsyncClient
    prefills: Sequence[str]
    gateways: dict[bool, str]
    """Whether it reads back -> its URL."""

    async def turn(self, gateway: str, messages: list[dict[str, str]]) -> tuple[float, str]:
        """Seconds until the first token, and what was said."""
        asked = {"model": "pdgate-tiny", "messages": messages, "stream": True}
        asked |= {"max_tokens": ANSWER_TOKENS, "temperature": 0}
        began, first, said = perf_counter(), 0.0, ""
        async with self.http.stream("POST", f"{gateway}/v1/chat/completions", json=asked) as answer:
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    said += choice["delta"].get("content") or ""
                    first = first or (said and perf_counter() - began) or 0.0
        return first, said

    async def computed(self) -> float:
        """Prompt tokens, by both prefill engines."""
        total = 0.0
        for url in self.prefills:
            lines = (await self.http.get(f"{url}/metrics")).text.splitlines()
            total += sum(
                float(line.rsplit(" ", 1)[1])
                for line in lines
                if line.startswith("vllm:prompt_tokens_by_source") and "local_compute" in line
            )
        return total

    async def second_turn(self, reads_back: bool, tokens: int, name: str) -> tuple[float, float]:
        """Seconds until its first token, and prompt tokens that were computed for it."""
        gateway = self.gateways[reads_back]
        # About a token a byte, as the built-in model reads.
        messages = [{"role": "user", "content": (f"{name} " * tokens)[:tokens]}]
        _, said = await self.turn(gateway, messages)
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "And?"}]
        before = await self.computed()
        seconds, _ = await self.turn(gateway, messages)
        return seconds, await self.computed() - before


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        engines = []
        for index, role in enumerate(("prefill", "prefill", "decode")):
            command = (
                *PDGATE, "engine", "--role", role, "--pdd-protocol", "vllm-nixl", "--transfer", "shm", "--port", "0",
                "--read-back", "--blocks", "4096", "--max-model-len", str(LIMIT_TOKENS),
            )  # fmt: skip
            program = await stack.enter_async_context(running(command, ready=READY))
            engines.append(DemoEngine.from_line(f"{role}-{index}", program.ready_line))
        flags = [word for one in engines for word in ("--instance", one.as_flag())]
        gateways = {}
        for reads_back in (False, True):
            more = ("--read-back",) if reads_back else ()
            command = (
                *PDGATE, "serve", "--port", "0", "--pdd-protocol", "vllm-nixl",
                "--prefill-policy", "round_robin", *flags, *more,
            )  # fmt: skip
            program = await stack.enter_async_context(running(command, ready=LISTENS))
            gateways[reads_back] = program.ready_line.removeprefix(LISTENS).split()[0]
        http = await stack.enter_async_context(httpx2.AsyncClient(timeout=600, trust_env=False))
        prefills = [one.url for one in engines if one.role == "prefill"]
        yield Site(http, prefills, gateways)


async def measure(sizes: Sequence[int], times: int) -> None:
    print("| prompt tokens of turn 1 | | seconds to turn 2's first token | its tokens computed |")
    print("|---|---|---|---|")
    async with site() as fleet:
        for tokens in sizes:
            for reads_back in (False, True):
                found = [
                    await fleet.second_turn(reads_back, tokens, f"{tokens}-{reads_back}-{n}")
                    for n in range(times)
                ]
                seconds, computed = (median(each) for each in zip(*found, strict=True))
                how = "read back" if reads_back else "computed"
                print(f"| {tokens:,} | {how} | {seconds:.3f} | {computed:,.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[200, 2000, 8000])
    parser.add_argument("--times", type=int, default=5)
    given = parser.parse_args()
    asyncio.run(measure(given.tokens, given.times))


if __name__ == "__main__":
    main()
