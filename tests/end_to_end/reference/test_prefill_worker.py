"""`pdgate prefill-worker` beside an engine that knows nothing of a queue."""

import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
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

    def taken(self) -> int:
        with closing(open_queue(settings.read(self.redis.url), MODEL)) as queue:
            return queue.depth().taken


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with ExitStack() as running, redis_server(tmp_path_factory.mktemp("redis")) as redis:
        fleet = Fleet(running, sys.executable)
        prefill = fleet.engine("prefill", "vllm-kvt", "shm", "--min-prefill-ms", "500")
        # A worker that was killed over an item still counts as its owner for so long.
        queue = f"{redis.url}?redeliver_seconds=2"
        decode = fleet.engine("decode", "decode-first", "shm", "--queue", queue)
        yield Site(fleet, redis, prefill, decode)


@pytest.fixture
def worker(site: Site) -> Iterator[Child]:
    queue = f"{site.redis.url}?redeliver_seconds=2"
    words = ["--queue", queue, "--model", MODEL, "--engine", site.prefill.url]
    more = ["--kv", site.prefill.kv, "--log-level", "debug"]
    command = [sys.executable, "-m", "pdgate", "prefill-worker", *words, *more]
    with child(command, name="prefill-worker") as worker:
        worker.wait_for_line("takes prompts for")
        yield worker


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


@pytest.mark.usefixtures("worker")
def test_its_engine_computes_what_the_queue_holds(site: Site) -> None:
    single, before = site.fleet.single(), moved(site)

    assert [queued(site, n) for n in range(2)] == [answer(single, n) for n in range(2)]

    assert moved(site) == before + 2


def test_told_to_stop_it_finishes_the_prompt_that_it_has(site: Site, worker: Child) -> None:
    before = moved(site)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(queued, site, 3)
        worker.wait_for_line("item .* yours")

        worker.signal(signal.SIGTERM)

        assert worker.wait_for_end() == 0
        assert site.taken() == 0
        assert asked.result() == answer(site.fleet.single(), 3)
    assert moved(site) == before + 1


def test_a_worker_that_is_killed_takes_no_answer_with_it(site: Site, worker: Child) -> None:
    """Its engine and decode need it no more once they know of each other."""
    before = moved(site)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(queued, site, 4)
        worker.wait_for_line("item .* yours")

        worker.signal(signal.SIGKILL)

        assert asked.result() == answer(site.fleet.single(), 4)
    assert moved(site) == before + 1
