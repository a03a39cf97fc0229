"""vLLM's decode half with a prefill queue, and a prefill half that knows of none."""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from pdgate.cluster.queue import settings
from pdgate.cluster.queue.contract import Queue
from pdgate.cluster.queue.opening import open_queue
from pdgate.engine.prefill_worker.worker import PrefillWorker, Serving
from pdgate.engine.vllm.dialects import DialectMode
from pdgate.engine.vllm.orders import CancelOrder, Progress
from pdgate.transfer.runtime.fleet import Identity
from tests.engine.vllm.two_workers import LAYOUT, P_BLOCKS, SECONDS, TOKENS, Pair, kept

QUEUED = {"do_queued_prefill": True}
NEVER = 3600.0


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def queue(url: str) -> Queue:
    return open_queue(settings.read(url), "tiny")


def beside(pair: Pair, queue: Queue, stack: ExitStack) -> None:
    """A worker for the pair's P, as `pdgate prefill-worker` runs it."""
    host, port = pair.p.connector.kv_address
    worker = PrefillWorker(queue, Serving("w", host, port, NEVER), Identity())
    worker.start()
    stack.callback(worker.wait, SECONDS)
    stack.callback(worker.cut)


@pytest.mark.parametrize("mode", DialectMode)
def test_a_queued_prompt_is_computed_by_the_engine_whose_worker_took_it(
    mode: DialectMode, url: str, queue: Queue, stack: ExitStack
) -> None:
    pair = Pair("shm", stack, (mode, mode), queue=url)
    pair.d.fetch(QUEUED)
    beside(pair, queue, stack)

    pair.p.obey([pair.asked(), Progress("p1", P_BLOCKS, TOKENS)])
    for layer in range(LAYOUT.layers):
        pair.compute(layer)
    pair.p.obey([kept()])

    assert pair.d.outcome().failed == frozenset()
    assert pair.same()


def test_decode_may_still_be_told_whom_to_ask(url: str, queue: Queue, stack: ExitStack) -> None:
    pair = Pair("shm", stack, queue=url)

    pair.delegated()

    assert queue.depth().waiting == 0


def test_a_cancelled_call_leaves_the_queue(url: str, queue: Queue, stack: ExitStack) -> None:
    pair = Pair("shm", stack, queue=url)
    pair.d.fetch(QUEUED)

    pair.d.obey([CancelOrder("d1")])

    assert pair.d.outcome().failed == {"d1"}
    assert queue.depth().waiting == 0


@pytest.mark.parametrize("params", [QUEUED, {"do_queued_prefill": "yes"}])
def test_without_a_queue_the_call_fails_alone(params: dict[str, Any], stack: ExitStack) -> None:
    pair = Pair("shm", stack)

    pair.d.fetch(params)

    assert pair.d.outcome().failed == {"d1"}


def test_a_queued_load_begins_behind_what_the_device_still_does(
    url: str, queue: Queue, stack: ExitStack
) -> None:
    """As of when it was ordered: later its turn comes on another thread, with another stream."""
    pair = Pair("shm", stack, queue=url)
    event, behind = Happened(), []
    decode = pair.d.hand_over
    decode.settings = replace(decode.settings, moment=lambda: event)
    start = decode._loads.start

    def watch(*words: Any) -> None:
        behind.append(words[3])
        start(*words)

    decode._loads.start = watch  # type: ignore[method-assign, assignment]
    pair.d.fetch(QUEUED)

    assert behind == [event]
    pair.d.obey([CancelOrder("d1")])
    assert pair.d.outcome().failed == {"d1"}


class Happened:
    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return
