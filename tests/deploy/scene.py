"""A fleet on which something of everything happens, watched by a real Prometheus.

    Prometheus --> pdgate serve --> prefill-0        well
                        |           prefill-1        fails a fifth of its requests
                        |           decode-0         well
                        |           decode-1         fails some, and dies in the middle
                        |           decode-2         has no connector, so it reads every prompt again
                        |           both-0           turned to where it helps
                        +-- Redis, a directory in a file, a collector of traces

Calls: streams and others, prompts that begin alike, more at once than there is room for, some that are
wrong, some whose client leaves. In the end Redis and the directory go away.
"""

import asyncio
import json
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import time

import httpx2

from tests.deploy.collector import collector
from tests.deploy.prometheus import Prometheus, prometheus
from tests.end_to_end.reference.fleet import Engine, Fleet, Gateway
from tests.support.redis import redis_server

MODEL = "pdgate-tiny"
CALLERS = 9
CALLS = 10
"""Of each caller."""
CROWD = 24
"""Calls that come at once: more than four engines and the line before them have room for."""
MORTAL = "decode-1"
MOST_TRIES = 200
LONG_TOKENS = 1000
"""Eight seconds of an answer: a busy machine may read its head two seconds after it was written, and 200 tokens
were written by then."""
PREFILLS = 3
"""Engines that read prompts, the one with both roles included."""
FIRST = {"x-priority": "0"}
EVENTS = ("--kv-events-port", "0")
PACE = ("--min-prefill-ms", "40", "--min-itl-ms", "8", "--lease-seconds", "8")
CONNECTED = ("vllm-nixl", "tcp", *EVENTS, *PACE)
SCRAPE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Scene:
    """
    Attributes:
        started, ended: Seconds since 1970, between which calls were made and scraped.
    """

    prometheus: Prometheus
    gateway: Gateway
    started: float
    ended: float


@contextmanager
def scene(folder: Path, rules: Sequence[Path] = (), calls: int = CALLS) -> Iterator[Scene]:
    """After the calls; all still runs."""
    with ExitStack() as running:
        redis = running.enter_context(redis_server(folder))
        fleet = Fleet(running, sys.executable)
        engines = _engines(fleet)
        running.callback(_end, engines)
        listed = folder / "engines.json"
        listed.write_text(json.dumps({"/workers/plain/192.0.2.1/8000": {"state": "loading"}}))
        flags = (
            *_instances(engines),
            *("--redis", redis.url, "--directory", "file", f"--directory-option=path={listed}"),
            *("--prefill-policy", "prefix_then_load", "--kv-events", "ask", "--adaptive"),
            *("--adaptive-period", "1", "--adaptive-stay", "2", "--resume"),
            *("--decode-concurrency", "2", "--max-waiting", "6", "--max-wait", "10"),
            *("--engine-metrics-interval", "0.3", "--health-interval", "0.5"),
            *("--pdd-protocol", "vllm-nixl", "--debug-headers", "--kv-lease-seconds", "8"),
            *("--otlp-endpoint", running.enter_context(collector())),
        )
        gateway = running.enter_context(fleet.serve(*flags))
        targets = {
            "pdgate": [_address(gateway.url)],
            "engines": [_address(engine.url) for engine in engines.values()],
        }
        watching = running.enter_context(prometheus(folder, targets, rules))
        watching.until(f"count (up == 1) == {len(engines) + 1}")
        started = time()
        asyncio.run(_traffic(gateway.url, watching, engines[MORTAL], calls))
        redis.stop()
        listed.unlink()
        watching.until("pdgate_directory_degraded == 1 and pdgate_redis_degraded == 1")
        watching.until("pdgate_replicas_degraded == 1")
        ended = time()
        watching.until(f"timestamp (pdgate_calls_in_flight) > {ended + SCRAPE_SECONDS:.3f}")
        yield Scene(watching, gateway, started, ended + SCRAPE_SECONDS)


def _engines(fleet: Fleet) -> dict[str, Engine]:
    """Started at once, as each takes seconds."""
    wanted = {
        "prefill-0": ("prefill", *CONNECTED),
        "prefill-1": ("prefill", *CONNECTED, "--fail-rate", "0.2"),
        "decode-0": ("decode", *CONNECTED),
        "decode-1": ("decode", *CONNECTED, "--fail-rate", "0.4"),
        "decode-2": ("plain", "plain", "tcp", "--no-prefix-cache", *PACE),
        "both-0": ("both", *CONNECTED),
    }
    with ThreadPoolExecutor(len(wanted)) as threads:
        starting = {name: threads.submit(fleet.engine, *words) for name, words in wanted.items()}
    return {name: each.result() for name, each in starting.items()}


def _end(engines: dict[str, Engine]) -> None:
    """At once: asked to, those with KV that nobody fetched would wait for its lease."""
    for engine in engines.values():
        engine.process.signal(signal.SIGKILL)


def _instances(engines: dict[str, Engine]) -> list[str]:
    return [
        f"--instance=id={name},role={name.split('-')[0]},url={engine.url}"
        for name, engine in engines.items()
    ]


def _address(url: str) -> str:
    return url.removeprefix("http://")


async def _traffic(url: str, watching: Prometheus, mortal: Engine, calls: int) -> None:
    half = asyncio.Event()
    async with (
        httpx2.AsyncClient(base_url=url, trust_env=False, timeout=60) as http,
        asyncio.TaskGroup() as callers,
    ):
        callers.create_task(_crowds(http, watching, half))
        callers.create_task(_kill(http, mortal, half))
        for number in range(CALLERS):
            callers.create_task(_caller(http, number, calls, half))


async def _caller(http: httpx2.AsyncClient, caller: int, calls: int, half: asyncio.Event) -> None:
    for number in range(calls):
        if number == calls // 2:
            half.set()
        if number % 7 == 3:
            # One word too many: it is refused before any engine is asked.
            await http.post("/v1/completions", content=b'{"model": ')
        if (caller + number) % 4 == 0:
            await http.post("/v1/completions", json=_question(caller, number))
            continue
        leaves = number % 9 == 5
        async with http.stream("POST", "/v1/completions", json=_streamed(caller, number)) as answer:
            async for _ in answer.aiter_bytes():
                if leaves:
                    break


async def _crowds(http: httpx2.AsyncClient, watching: Prometheus, moment: asyncio.Event) -> None:
    """Two: of a counter that is born with its first event, only what comes after that is a rate."""
    await moment.wait()
    await _crowd(http)
    await asyncio.to_thread(watching.until, "pdgate_calls_turned_away_total")
    await _crowd(http)


async def _crowd(http: httpx2.AsyncClient) -> None:
    """Until some of it found no room: how many come at once is for the machine to say."""
    for _ in range(MOST_TRIES):
        async with asyncio.TaskGroup() as together:
            asked = [
                together.create_task(http.post("/v1/completions", json=_question(0, number)))
                for number in range(CROWD)
            ]
        if any(each.result().status_code == httpx2.codes.TOO_MANY_REQUESTS for each in asked):
            return
    raise AssertionError(f"each of {CROWD} calls at once found room, {MOST_TRIES} times")


async def _kill(http: httpx2.AsyncClient, mortal: Engine, half: asyncio.Event) -> None:
    """While it writes an answer, so that this breaks off; and after it has failed often enough."""
    await half.wait()
    for number in range(MOST_TRIES):
        often_enough = await _stranded(http) > PREFILLS
        question = {**_streamed(0, number), "max_tokens": LONG_TOKENS if often_enough else 200}
        async with http.stream("POST", "/v1/completions", json=question, headers=FIRST) as answer:
            # At once: a busy machine takes as long for anything else as for the whole answer.
            if strikes := often_enough and answer.headers.get("x-pd-decode") == MORTAL:
                mortal.process.signal(signal.SIGKILL)
            async for _ in answer.aiter_bytes():
                if often_enough and not strikes:
                    break
        if mortal.process.process.poll() is not None:
            return
    raise AssertionError(f"{MORTAL} got none of {MOST_TRIES} calls, or failed too seldom")


async def _stranded(http: httpx2.AsyncClient) -> float:
    """Prompts that somebody keeps for nobody: more than engines, so that one has two of them."""
    found = re.findall(
        r"^pdgate_kv_strandings_total{.*} (\S+)$", (await http.get("/metrics")).text, re.MULTILINE
    )
    return sum(map(float, found))


def _question(caller: int, number: int) -> dict[str, object]:
    """Callers of three kinds, whose prompts begin alike."""
    subject = f"Caller {caller % 3} asks about the weather in the city of Prague. " * 10
    return {"model": MODEL, "prompt": f"{subject} Question {number}?", "max_tokens": 24}


def _streamed(caller: int, number: int) -> dict[str, object]:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    return {**_question(caller, number), **options}
