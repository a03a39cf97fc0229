"""decode-first: the queue chooses who computes, and decode stays master of its pages."""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from pdgate.cluster.queue import settings
from pdgate.cluster.queue.contract import Item, Queue
from pdgate.cluster.queue.opening import open_queue
from pdgate.engine.connector import Arrival, Compute, Keep, Load, Pages
from pdgate.engine.hand_over.decode_first import DecodeFirstHandOver
from pdgate.engine.prefill_worker import worker
from pdgate.protocols.dialects import decode_first
from pdgate.protocols.instance import Role
from tests.support.engine_pair import D_BLOCKS, P_BLOCKS, PROMPT, arrival
from tests.support.fake_core import SECONDS, FakeCore
from tests.support.waiting import wait_until

PROTOCOL = "decode-first"
QUEUED = dict(decode_first.QUEUED)
Start = Callable[..., FakeCore]


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def queue(url: str) -> Queue:
    return open_queue(settings.read(url), "tiny")


@pytest.fixture
def start(url: str, backend: str) -> Iterator[Start]:
    """Starts an engine of a role at the same queue as the others."""
    with ExitStack() as stack:

        def engine(role: str, **options: object) -> FakeCore:
            chosen: dict[str, Any] = {"prefill_queue": url, **options}
            core = FakeCore(backend, PROTOCOL, role, **chosen)
            return stack.enter_context(closing(core))

        yield engine


def queued(request_id: str) -> Arrival:
    return arrival(request_id, params=QUEUED)


def emptied(queue: Queue) -> bool:
    depth = queue.depth()
    return depth.waiting == depth.taken == 0


def test_prefill_computes_all_but_the_last_token_into_decodes_pages(
    start: Start, queue: Queue
) -> None:
    p, d = start("prefill"), start("decode")

    d.load(queued("d1"), D_BLOCKS)

    assert d.result() is None
    _, prompt, tokens = p.prefills.get(timeout=SECONDS)
    assert (tuple(prompt), tokens) == (PROMPT, len(PROMPT) - 1)
    assert d.holds(D_BLOCKS, seed=1)
    wait_until(lambda: emptied(queue), "an empty queue")


def test_a_prompt_waits_for_a_prefill_engine_to_come(start: Start) -> None:
    d = start("decode")
    d.load(queued("d1"), D_BLOCKS)

    start("prefill")

    assert d.result() is None
    assert d.holds(D_BLOCKS, seed=1)


def test_blocks_that_decode_has_already_are_not_written(start: Start) -> None:
    start("prefill")
    d = start("decode")

    d.load(queued("d1"), D_BLOCKS, skip_tokens=4)

    assert d.result() is None
    assert d.holds(D_BLOCKS[1:], seed=1, first=1)
    assert not any(d.page(0, D_BLOCKS[0]))


@pytest.mark.parametrize(
    "asked", [arrival(params=None), arrival(params=QUEUED, prompt=(1,))], ids=["not told", "one"]
)
def test_decode_computes_what_it_is_not_told_to_queue_or_what_is_too_short(
    start: Start, asked: Arrival
) -> None:
    assert start("decode").connector.plan(asked) is None


@pytest.mark.parametrize(
    ("cached", "plan"), [(0, Load), (len(PROMPT) - 5, Load), (len(PROMPT) - 4, Compute)]
)
def test_decode_computes_what_is_short_but_for_what_it_has_cached(
    start: Start, cached: int, plan: type
) -> None:
    asked = replace(queued("d1"), cached_tokens=lambda: cached)

    assert isinstance(start("decode", max_local_prefill=4).connector.plan(asked), plan)


def test_decode_computes_all_while_the_queue_is_long(start: Start, queue: Queue) -> None:
    """By the queue's own count, and by ours of what it will not have counted yet."""
    d = start("decode", max_prefill_queue=1)
    far = start("decode", max_prefill_queue=2)
    for core in (d, far):
        wait_until(partial(has_looked, core), "a look at the queue")
        assert isinstance(core.connector.plan(queued("d0")), Load)

    d.load(queued("d1"), D_BLOCKS)

    assert isinstance(d.connector.plan(queued("d2")), Compute)
    assert isinstance(far.connector.plan(queued("f1")), Load)
    queue.put(Item("x", "127.0.0.1", 9, 5, time.time() + SECONDS))
    wait_until(lambda: isinstance(far.connector.plan(queued("f1")), Compute), "the queue's count")


def has_looked(core: FakeCore) -> bool:
    return core.connector.gauges()["pdgate_prefill_queue_up"][1] == 1


def test_it_is_told_in_a_way_that_is_checked(start: Start) -> None:
    with pytest.raises(ValueError, match="do_queued_prefill must be true or false"):
        start("decode").connector.plan(arrival(params={"do_queued_prefill": "yes"}))


def test_decode_may_still_be_told_whom_to_ask(start: Start, queue: Queue) -> None:
    p, d = start("prefill"), start("decode")
    host, port = p.connector.kv_address

    d.load(arrival("d1", params={"remote_host": host, "remote_port": port}), D_BLOCKS)

    assert d.result() is None
    assert emptied(queue)


def test_what_the_prefix_cache_has_is_not_put_on_the_queue(start: Start, queue: Queue) -> None:
    d = start("decode")

    d.load(queued("d1"), D_BLOCKS, skip_tokens=len(PROMPT) - 1)

    assert d.result() is None
    assert emptied(queue)


def test_a_prefill_engine_is_sent_no_calls(start: Start) -> None:
    with pytest.raises(ValueError, match="role is prefill"):
        start("prefill").connector.plan(queued("d1"))


def test_an_engine_takes_from_the_queue_while_its_role_is_to_prefill(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Semaphore(0)
    monkeypatch.setattr(worker, "RETRY_SECONDS", 0.01)
    turning, d = start("both"), start("decode")
    assert isinstance(turning.connector, DecodeFirstHandOver)
    its_worker = turning.connector._worker
    assert its_worker is not None
    watched = its_worker._ready

    def takes_now() -> bool:
        takes = watched()
        if not takes:
            asked.release()
        return takes

    monkeypatch.setattr(its_worker, "_ready", takes_now)
    turning.connector.role_is(Role.DECODE)
    # From here on its worker is not waiting for an item any more.
    assert asked.acquire(timeout=SECONDS)
    d.load(queued("d1"), D_BLOCKS)
    assert asked.acquire(timeout=SECONDS)
    assert turning.prefills.empty()

    turning.connector.role_is(Role.BOTH)
    assert d.result() is None


def test_one_engine_may_be_both(start: Start) -> None:
    both = start("both")

    both.load(queued("d1"), D_BLOCKS)

    assert both.result() is None
    assert both.holds(D_BLOCKS, seed=1)


def test_a_failed_prefill_is_tried_again(start: Start, queue: Queue) -> None:
    """Into the same pages: the prefill engine said that it writes no more."""
    d, p = start("decode"), start("prefill", prefills_at_once=False)
    d.load(queued("d1"), D_BLOCKS)
    request_id, _, _ = p.prefills.get(timeout=SECONDS)
    p.prefills_at_once = True

    p.connector.dropped(request_id, "out of pages")

    assert p.prefills.get(timeout=SECONDS)
    assert d.result() is None
    assert d.results.empty()
    assert d.holds(D_BLOCKS, seed=1)
    wait_until(lambda: emptied(queue), "an empty queue")


def test_an_engine_that_dies_over_a_prompt_is_replaced_at_once(start: Start, queue: Queue) -> None:
    d = start("decode")
    dying = start("prefill", prefills_at_once=False)
    d.load(queued("d1"), D_BLOCKS)
    dying.prefills.get(timeout=SECONDS)
    start("prefill")

    dying.connector.close()

    assert d.result() is None
    wait_until(lambda: emptied(queue), "an empty queue")


def test_a_prompt_that_fails_everywhere_fails_its_request(
    start: Start, url: str, queue: Queue
) -> None:
    d, p = start("decode"), start("prefill", prefills_at_once=False)
    d.load(queued("d1"), D_BLOCKS)

    for _ in range(settings.read(url).tries):
        request_id, _, _ = p.prefills.get(timeout=SECONDS)
        p.connector.dropped(request_id, "out of pages")

    error = d.result()
    assert error is not None
    assert error.startswith("given up: ")
    assert "out of pages" in error
    assert queue.depth().buried == 1


def test_a_full_queue_fails_the_request_by_name(start: Start, url: str) -> None:
    d = start("decode", prefill_queue=f"{url}?capacity=1")
    open_queue(settings.read(url), "tiny").put(Item("r0", "127.0.0.1", 1, 7, deadline=4e9))

    d.load(queued("d1"), D_BLOCKS)

    assert d.result() == "full queue: 1 items are not done yet"


def test_nobody_comes_before_the_deadline(start: Start, queue: Queue) -> None:
    # The time that it takes to put it into the queue is part of it.
    d = start("decode", lease_seconds=0.5)

    d.load(queued("d1"), D_BLOCKS)

    assert d.result() == "too late: no prefill worker came for it"
    assert emptied(queue)


def test_a_prompt_does_not_wait_for_workers_that_are_gone(
    start: Start, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frozen, cut off from the queue or ended: it waited for its whole lease, at each attempt."""
    p, d = start("prefill"), start("decode")
    d.load(queued("d1"), D_BLOCKS)
    assert d.result() is None

    assert isinstance(p.connector, DecodeFirstHandOver)
    its_worker = p.connector._worker
    assert its_worker is not None
    p.connector.leave()
    assert its_worker.wait(SECONDS)
    monkeypatch.setattr(d.connector, "_unattended_seconds", 1.0)
    d.load(queued("d2"), D_BLOCKS)

    error = d.result()
    assert error is not None
    assert error.startswith("too late: no prefill worker has asked for a prompt for ")
    assert emptied(queue)


def test_a_worker_that_has_just_come_is_seen_before_a_prompt_is_given_up(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks at the queue are two seconds apart: what came in the first of a new worker failed."""
    d = start("decode")
    assert isinstance(d.connector, DecodeFirstHandOver)
    watch = d.connector._watch
    wait_until(lambda: watch.depth is not None, "a first look")
    # No other look is made by itself.
    watch.close()
    monkeypatch.setattr(d.connector, "_unattended_seconds", 0.5)
    wait_until(lambda: watch.unattended_seconds >= 0.5, "nobody for a while")
    p = start("prefill")
    assert isinstance(p.connector, DecodeFirstHandOver)
    seen = p.connector._watch
    wait_until(lambda: seen.depth and seen.depth.idle_seconds is not None, "a worker that asks")

    d.load(queued("d1"), D_BLOCKS)

    assert d.result() is None


def test_a_cancelled_request_leaves_the_queue(start: Start, queue: Queue) -> None:
    d = start("decode")
    d.load(queued("d1"), D_BLOCKS)
    wait_until(lambda: queue.depth().waiting == 1, "one that waits")

    d.connector.cancel("d1")

    assert d.result() == "cancelled"
    assert emptied(queue)


def test_cancelling_during_the_prefill_ends_it_there_too(start: Start, queue: Queue) -> None:
    d, p = start("decode"), start("prefill", prefills_at_once=False)
    d.load(queued("d1"), D_BLOCKS)
    request_id, _, _ = p.prefills.get(timeout=SECONDS)

    d.connector.cancel("d1")

    assert d.result() == "cancelled"
    assert p.aborted.get(timeout=SECONDS) == request_id
    wait_until(lambda: emptied(queue), "an empty queue")


def test_closing_decode_ends_what_waits(start: Start, queue: Queue) -> None:
    d = start("decode")
    d.load(queued("d1"), D_BLOCKS)
    wait_until(lambda: queue.depth().waiting == 1, "one that waits")

    d.connector.close()

    assert d.result() == "cancelled"
    assert emptied(queue)


def test_items_of_a_decode_engine_that_is_gone_harm_nobody(start: Start, queue: Queue) -> None:
    p, d = start("prefill"), start("decode")
    queue.put(Item("another life/r1", "127.0.0.1", 1, tokens=7, deadline=0.0))

    d.load(queued("d1"), D_BLOCKS)

    assert d.result() is None
    wait_until(lambda: emptied(queue), "an empty queue")
    assert p.prefills.qsize() == 1


def test_every_request_is_served_once_by_several_workers(start: Start) -> None:
    ps = [start("prefill") for _ in range(2)]
    ds = [start("decode") for _ in range(2)]

    for number in range(6):
        for d in ds:
            d.load(queued(f"d{number}"), (2 * number, 2 * number + 1))

    assert [d.result() for d in ds for _ in range(6)] == [None] * 12
    assert sum(p.prefills.qsize() for p in ps) == 12
    assert all(d.holds((0, 1), seed=1) and d.holds((10, 11), seed=1) for d in ds)


@pytest.mark.parametrize("queue_url", ["", "redis://", "memory://it?tries=0"])
def test_without_a_queue_an_engine_does_not_start(queue_url: str) -> None:
    with pytest.raises(ValueError, match="--queue"):
        FakeCore("tcp", PROTOCOL, "decode", prefill_queue=queue_url)


def test_an_engine_that_leaves_finishes_its_prompt_and_takes_no_other(
    start: Start, queue: Queue
) -> None:
    d, leaving = start("decode"), start("prefill", prefills_at_once=False)
    d.load(queued("d1"), D_BLOCKS)
    request_id, _, tokens = leaving.prefills.get(timeout=SECONDS)

    leaving.connector.leave()
    d.load(queued("d2"), (6, 7))
    leaving.write(P_BLOCKS, seed=1)
    leaving.connector.kept(request_id, Keep(SECONDS), Pages(P_BLOCKS, tokens), None, "length")

    assert d.result() is None
    assert d.holds(D_BLOCKS, seed=1)
    wait_until(lambda: queue.depth().taken == 0, "none that is taken")
    assert queue.depth().waiting == 1
    start("prefill")
    assert d.result() is None
