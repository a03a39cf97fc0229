"""What a hit in each KV tier saves beside computing the prompt: host memory, disk, and the tiers of another host.

    python -m benchmarks.kv_tiers [--tokens 500 3000] [--times 5] [--folder FOLDER]

One engine of the reference kind has computed the prompts and has them in its tiers. Others, which have nothing in their pages, are
asked the same ones: without a tier, with the first engine's folders, and with nothing but the first engine as a peer over
`tcp`, on this machine's loopback. Told is the median of the milliseconds until the answer of one token, by turns. A disk is read from the
machine's page cache: `--folder` says on which one it is.
"""

import argparse
import asyncio
import secrets
import socket
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final

import httpx2

from pdgate.lab.demo.run import READY
from pdgate.lab.processes import running

PDGATE: Final = (sys.executable, "-m", "pdgate")
BLOCK_TOKENS: Final = 16
MIB: Final = 2048
VOCABULARY: Final = range(3, 259)
LAST_WORD_SECONDS: Final = 0.05
"""Between two looks at what is written."""


class Site:
    def __init__(self, stack: AsyncExitStack, http: httpx2.AsyncClient, secret: Path) -> None:
        self._stack = stack
        self._http = http
        self._secret = secret

    async def engine(self, *flags: str) -> str:
        """The URL of one that has nothing in its pages."""
        command = (
            *PDGATE, "engine", "--port", "0", "--blocks", "4096", "--max-model-len", "16384",
            "--kv-secret-file", str(self._secret), *flags,
        )  # fmt: skip
        program = await self._stack.enter_async_context(running(command, ready=READY))
        return program.ready_line.removeprefix(READY).split()[0]

    async def asked(self, url: str, prompt: list[int]) -> float:
        """Milliseconds."""
        body = {"prompt": prompt, "max_tokens": 1, "temperature": 0}
        began = perf_counter()
        answer = await self._http.post(f"{url}/v1/completions", json=body)
        answer.raise_for_status()
        return (perf_counter() - began) * 1000

    async def metric(self, url: str, name: str, label: str) -> float:
        lines = (await self._http.get(f"{url}/metrics")).text.splitlines()
        return sum(
            float(line.rsplit(" ", 1)[1]) for line in lines if name in line and label in line
        )

    async def written(self, url: str, blocks: int) -> None:
        """Until so many are on disk, which is the last of the tiers."""
        # It is another process, so there is no event to wait for.
        while await self.metric(url, "kv_tier_written_total", "disk") < blocks:  # noqa: ASYNC110
            await asyncio.sleep(LAST_WORD_SECONDS)


def prompt_of(tokens: int, number: int) -> list[int]:
    """No other begins like it."""
    words = [VOCABULARY[number % len(VOCABULARY)], VOCABULARY[number // len(VOCABULARY)]]
    return words + [VOCABULARY[(7 * n + number) % len(VOCABULARY)] for n in range(tokens - 2)]


async def measure(sizes: Sequence[int], times: int, folder: Path, memory: Path) -> None:
    secret = folder / "secret"
    secret.write_text(secrets.token_hex(32))
    secret.chmod(0o600)
    host = f"host={memory}:{MIB}"
    disk = f"disk={folder / 'disk'}:{MIB}"
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx2.AsyncClient(timeout=600, trust_env=False))
        site = Site(stack, http, secret)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        first = await site.engine("--kv-tier", host, "--kv-tier", disk, "--kv-tier-port", port)
        ways = {
            "computed": await site.engine(),
            "host": await site.engine("--kv-tier", host),
            "disk": await site.engine("--kv-tier", disk),
            "peer": await site.engine("--kv-tier", f"peer=127.0.0.1:{port}:{MIB}"),
        }
        print("| prompt tokens | computed | " + " | ".join([*ways][1:]) + " |")
        print("|---" * (1 + len(ways)) + "|")
        number = blocks = 0
        for tokens in sizes:
            took: dict[str, list[float]] = {way: [] for way in ways}
            # One more, of which nothing is told.
            for turn in range(times + 1):
                prompt = prompt_of(tokens, number)
                number += 1
                await site.asked(first, prompt)
                blocks += tokens // BLOCK_TOKENS
                await site.written(first, blocks)
                for way, url in ways.items():
                    hits = await site.metric(url, "kv_tier_hits_total", way)
                    found = await site.asked(url, prompt)
                    grew = await site.metric(url, "kv_tier_hits_total", way) - hits
                    assert way == "computed" or grew == (tokens - 1) // BLOCK_TOKENS
                    if turn:
                        took[way].append(found)
            cells = [f"{median(each):.1f} ms" for each in took.values()]
            print(f"| {tokens:,} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[500, 3000])
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="in which the disk tier's is made")
    given = parser.parse_args()
    made = tempfile.TemporaryDirectory
    with made(dir=given.folder) as folder, made(dir="/dev/shm") as memory:
        asyncio.run(measure(given.tokens, given.times, Path(folder), Path(memory)))


if __name__ == "__main__":
    main()
