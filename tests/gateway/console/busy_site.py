"""A gateway with reference engines behind it, and people who ask: for pictures of the console.

Everything is real but the speed of the engines, which is given (--min-read-ms, --min-itl-ms), so that
a small machine shows what a large one would.
"""

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2

from tests.end_to_end.reference.fleet import READY, START_SECONDS
from tests.support.processes import Child, child

TOKEN = "correct-horse-battery-staple"
WORDS = [
    "why",
    "does",
    "the",
    "prefill",
    "engine",
    "hand",
    "over",
    "what",
    "it",
    "has",
    "read",
    "to",
    "the",
    "one",
    "that",
    "answers",
]


@dataclass(frozen=True)
class Site:
    """
    Attributes:
        engines: Id -> its process.
    """

    url: str
    token_file: Path
    engines: dict[str, Child]


@contextmanager
def busy_site(folder: Path, *flags: str) -> Iterator[Site]:
    """Two prefill engines and three decode engines."""
    pdgate = [sys.executable, "-m", "pdgate"]
    token_file = folder / "token"
    token_file.write_text(TOKEN)
    with ExitStack() as stack:
        engines, instances = {}, []
        starting = []
        for name, role, more in (
            ("p-0", "prefill", ("--min-prefill-ms", "90")),
            ("p-1", "prefill", ("--min-prefill-ms", "140")),
            ("d-0", "decode", ("--min-itl-ms", "28")),
            ("d-1", "decode", ("--min-itl-ms", "35")),
            ("d-2", "decode", ("--min-itl-ms", "45")),
        ):
            words = ("engine", "--port", "0", "--role", role, "--pdd-protocol", "vllm-nixl")
            size = ("--blocks", "96", "--max-num-seqs", "8", "--threads", "1")
            process = stack.enter_context(child([*pdgate, *words, *more, *size], name=name))
            engines[name] = process
            starting.append((name, role, process))
        for name, role, process in starting:
            url = process.wait_for_line(READY, START_SECONDS)[1]
            instances += ["--instance", f"id={name},role={role},url={url}"]
        serve = [*pdgate, "serve", "--port", "0", "--admin-token-file", str(token_file)]
        serve += ["--engine-metrics-interval", "1", *instances, *flags]
        gateway = stack.enter_context(child(serve, name="gateway"))
        url = gateway.wait_for_line(r"pdgate listens on (http://\S+)", START_SECONDS)[1]
        gateway.wait_for_http(f"{url}/ready", START_SECONDS)
        yield Site(url, token_file, engines)


@asynccontextmanager
async def callers(site: Site, number: int, seed: int = 7) -> AsyncIterator[None]:
    """So many people ask, one call after the other, until the block ends."""
    draw = random.Random(seed)
    async with httpx2.AsyncClient(base_url=site.url, trust_env=False, timeout=60) as http:
        model = (await http.get("/v1/models")).json()["data"][0]["id"]

        async def one() -> None:
            while True:
                await _ask(http, model, draw)
                await asyncio.sleep(draw.expovariate(3.0))

        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(one()) for _ in range(number)]
            try:
                yield
            finally:
                for task in asking:
                    task.cancel()


async def _ask(http: httpx2.AsyncClient, model: str, draw: random.Random) -> None:
    question = " ".join(draw.choices(WORDS, k=draw.randint(4, 40)))
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": draw.randint(8, 90),
        "stream": True,
    }
    try:
        async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            # Some lose their patience.
            leaves_after = 6 if draw.random() < 0.05 else None
            async for number, _ in _counted(answer.aiter_lines()):
                if leaves_after is not None and number > leaves_after:
                    return
    except httpx2.HTTPError:
        # An engine may be killed for a picture; who asked asks again.
        return


async def _counted(lines: AsyncIterator[str]) -> AsyncIterator[tuple[int, str]]:
    number = 0
    async for line in lines:
        yield number, line
        number += 1
