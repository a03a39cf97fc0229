"""Decode-first on stock vLLM: D puts prompts on a Redis queue, P has a worker beside it."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from signal import SIGTERM
from typing import Any

import pytest

from tests.end_to_end.vllm.asking import Said, chat, client, complete, prompt
from tests.end_to_end.vllm.engines import BLOCK, PDGATE_TCP, Engine, Fleet, Transfer, ready
from tests.end_to_end.vllm.gateway import Gateway, gateway_over
from tests.end_to_end.vllm.metrics import Counted
from tests.support.ports import LOOPBACK, free_port
from tests.support.processes import Child, child
from tests.support.redis import redis_server


@dataclass(frozen=True)
class Site:
    decode: Engine
    worker: Child
    serve: list[str]
    transfer: Transfer = PDGATE_TCP


def with_queue(flags: tuple[str, ...], url: str) -> list[str]:
    """`--kv-transfer-config` with one option more."""
    flag, text = flags
    said: dict[str, Any] = json.loads(text)
    extra: Mapping[str, Any] = said["kv_connector_extra_config"]
    return [flag, json.dumps({**said, "kv_connector_extra_config": {**extra, "queue": url}})]


@pytest.fixture(scope="module")
def site(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with ExitStack() as stack:
        redis = stack.enter_context(redis_server(tmp_path_factory.mktemp("redis")))
        p_port, p_kv, d_port, d_kv = (free_port() for _ in range(4))
        p_flags = PDGATE_TCP.flags("kv_producer", p_port, p_kv)
        d_flags = with_queue(tuple(PDGATE_TCP.flags("kv_consumer", d_port, d_kv)), redis.url)
        starting = fleet.start(stack, "queue-p", p_port, p_flags)
        decode = ready(fleet.start(stack, "queue-d", d_port, d_flags), d_port)
        # Before P is there: it waits until P is well.
        words = ["--queue", redis.url, "--model", str(fleet.model)]
        at = ["--engine", f"http://{LOOPBACK}:{p_port}", "--kv", f"{LOOPBACK}:{p_kv}"]
        command = [sys.executable, "-m", "pdgate", "prefill-worker", *words, *at]
        log = fleet.logs / "queue-worker.log"
        worker = stack.enter_context(child(command, log=log, name="prefill-worker"))
        prefill = ready(starting, p_port)
        yield Site(decode, worker, ["--prefill", prefill.url, "--decode", decode.url])


@pytest.fixture(scope="module")
def gateway(site: Site, fleet: Fleet) -> Iterator[Gateway]:
    with gateway_over(site, "batch", fleet.logs, "decode-first") as gateway:
        yield gateway


def told(url: str, is_chat: bool, stream: bool, salt: str) -> Said:
    with client(url) as asked:
        if is_chat:
            return chat(asked, f"what is {salt}? " * 20, stream=stream)
        return complete(asked, prompt(5 * BLOCK + 3, salt), stream=stream)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("is_chat", [False, True], ids=["completions", "chat"])
def test_the_answer_is_the_single_engines(
    site: Site, gateway: Gateway, alone: Engine, is_chat: bool, stream: bool
) -> None:
    salt = f"queued {is_chat} {stream}"
    before = Counted.by(site.decode)

    answer = told(gateway.url, is_chat, stream, salt).answer

    assert answer == told(alone.url, is_chat, stream, salt).answer
    assert Counted.by(site.decode).transfers == before.transfers + 1


def test_the_worker_leaves_in_order(site: Site, gateway: Gateway) -> None:
    """Last of all."""
    site.worker.signal(SIGTERM)

    assert site.worker.wait_for_end() == 0
