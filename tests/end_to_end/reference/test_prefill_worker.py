"""`pdgate prefill-worker` beside an engine that knows nothing of a queue."""

import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pdgate.cluster.queue import settings
from pdgate.cluster.queue.opening import open_queue
from pdgate.protocols.dialects import decode_first
from tests.end_to_end.reference.fleet import Engine, Fleet
from tests.support.processes import Child, child
from tests.support.redis import RedisServer, redis_server

MODEL = "pdgate-tiny"
PROMPT = "call me Ishmael. some years ago, never mind how long precisely; "


@dataclass(frozen=True)
class Site:
    fleet: Fleet
    redis: RedisServer
    prefill: Engine
    decode: Engine
    worker: Child

    def taken(self) -> int:
        with closing(open_queue(settings.read(self.redis.url), MODEL)) as queue:
            return queue.depth().taken


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as running, redis_server(tmp_path) as redis:
        fleet = Fleet(running, sys.executable)
        prefill = fleet.engine("prefill", "vllm-kvt", "shm", "--min-prefill-ms", "500")
        decode = fleet.engine("decode", "decode-first", "shm", "--queue", redis.url)
        words = ["--queue", redis.url, "--model", MODEL, "--engine", prefill.url]
        command = [
            sys.executable,
            "-m",
            "pdgate",
            "prefill-worker",
            *words,
            *("--kv", prefill.kv),
            *("--log-level", "debug"),
        ]
        worker = running.enter_context(child(command, name="prefill-worker"))
        worker.wait_for_line("takes prompts for")
        yield Site(fleet, redis, prefill, decode, worker)


def answer(engine: Engine, number: int, **more: Any) -> str:
    body = {"model": MODEL, "prompt": f"{number}. {PROMPT}", "max_tokens": 8, "temperature": 0}
    url = f"{engine.url}/v1/completions"
    said = httpx2.post(url, json={**body, **more}, timeout=60, trust_env=False)
    assert said.status_code == 200, said.text
    text: str = said.json()["choices"][0]["text"]
    return text


def queued(site: Site, number: int) -> str:
    return answer(site.decode, number, kv_transfer_params=dict(decode_first.QUEUED))


def moved(site: Site) -> float:
    return site.decode.metric("pdgate_engine_kv_transfers_total")


def test_its_engine_computes_what_the_queue_holds(site: Site) -> None:
    single = site.fleet.single()

    assert [queued(site, n) for n in range(2)] == [answer(single, n) for n in range(2)]

    assert moved(site) == 2


def test_told_to_stop_it_finishes_the_prompt_that_it_has(site: Site) -> None:
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(queued, site, 1)
        site.worker.wait_until(lambda: site.taken() or None, "an item at the worker")

        site.worker.signal(signal.SIGTERM)

        assert site.worker.wait_for_end() == 0
        assert site.taken() == 0
        assert asked.result() == answer(site.fleet.single(), 1)
    assert moved(site) == 1


def test_a_worker_that_is_killed_takes_no_answer_with_it(site: Site) -> None:
    """Its engine and decode need it no more once they know of each other."""
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(queued, site, 1)
        site.worker.wait_for_line("item .* yours")

        site.worker.signal(signal.SIGKILL)

        assert asked.result() == answer(site.fleet.single(), 1)
    assert moved(site) == 1
