"""P of stock vLLM reads what D lends of a prompt's beginning: both halves, and the bytes between two workers."""

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from threading import Event
from typing import Any

import pytest

from pdgate.cluster.queue import settings
from pdgate.cluster.queue.opening import open_queue
from pdgate.engine.connector import Keep, Load
from pdgate.engine.prefill_worker.worker import PrefillWorker, Serving
from pdgate.engine.vllm.intent import LENT, PREFILL_ID
from pdgate.engine.vllm.orders import (
    Borrow,
    CancelOrder,
    Fetch,
    Forgo,
    Hold,
    KeptBlocks,
    Progress,
)
from pdgate.engine.vllm.reports import Results
from pdgate.engine.vllm.scheduler_side import EndingRequest, SchedulerSide
from pdgate.transfer.device.base import DeviceEvent, wait
from pdgate.transfer.messenger import service
from pdgate.transfer.messenger.offers import Offers, ReleasedOffer
from pdgate.transfer.runtime.fleet import Identity
from tests.engine.vllm.test_queued import NEVER, QUEUED
from tests.engine.vllm.test_scheduler_side import ABORTED, BLOCK, CAPPED, FAILED, Request
from tests.engine.vllm.two_workers import (
    D_BLOCKS,
    LAYOUT,
    P_BLOCKS,
    SECONDS,
    TOKENS,
    Pair,
    content,
    kept,
)
from tests.engine.vllm.worker_rig import BLOCKS, LEASE_SECONDS, Rig, asked
from tests.support.waiting import wait_until

LENT_TOKENS = 8
"""Two blocks, of a prompt of ten tokens of which prefill is asked for nine."""


def borrowing(lent: object = LENT_TOKENS, **more: Any) -> Request:
    params = {"do_remote_decode": True, PREFILL_ID: "kvt-1", LENT: lent, **more}
    return Request(kv_transfer_params=params)


# What the scheduler's half decides.


@pytest.fixture
def side() -> SchedulerSide:
    return SchedulerSide(BLOCK, recomputes=True)


@pytest.mark.parametrize("cached", [0, BLOCK])
def test_only_what_is_lent_and_not_cached_here_is_read(cached: int, side: SchedulerSide) -> None:
    request = borrowing()

    external = side.matched(request, cached)
    side.allocated(request, [5, 6, 7], external)

    assert external == LENT_TOKENS - cached
    assert side.take_orders() == (
        Hold(request.asked),
        Borrow(request.asked, (5, 6), LENT_TOKENS, cached),
    )


@pytest.mark.parametrize("cached", [LENT_TOKENS, LENT_TOKENS + 1])
def test_what_the_own_cache_has_is_not_read(cached: int, side: SchedulerSide) -> None:
    request = borrowing()

    assert side.matched(request, cached) == 0
    side.allocated(request, [5, 6, 7], 0)

    assert side.take_orders() == (Hold(request.asked),)


def test_all_but_the_last_token_may_be_lent(side: SchedulerSide) -> None:
    assert side.matched(borrowing(9), 0) == 9


def test_an_engine_whose_failed_loads_end_requests_borrows_nothing() -> None:
    side = SchedulerSide(BLOCK, recomputes=False)
    request = borrowing()

    assert side.matched(request, 0) == 0
    side.allocated(request, [5, 6, 7], 0)

    assert side.take_orders() == (Hold(request.asked),)


@pytest.mark.parametrize("lent", [0, -1, 10, 11, True, "8", 8.0, None])
def test_a_loan_that_makes_no_sense_is_none(lent: object, side: SchedulerSide) -> None:
    assert side.matched(borrowing(lent), 0) == 0


def test_who_was_not_asked_by_a_decode_engine_is_lent_nothing(side: SchedulerSide) -> None:
    request = Request(kv_transfer_params={"do_remote_decode": True, LENT: LENT_TOKENS})

    assert side.matched(request, 0) == 0


def test_a_loan_that_could_not_be_read_is_not_read_again(side: SchedulerSide) -> None:
    """vLLM takes the blocks back and asks once more, as for a request that has just come."""
    request = borrowing()
    side.allocated(request, [5, 6, 7], side.matched(request, 0))
    side.take_orders()

    assert side.matched(request, 0) == 0
    side.allocated(request, [1, 2, 3], 0)
    side.computing(request.request_id, [1, 2, 3], 10)

    assert side.take_orders() == (Progress(request.request_id, (1, 2, 3), 10),)
    request.num_computed_tokens = 10
    assert side.finished(request, CAPPED, [1, 2, 3]).keeps
    assert side.take_orders() == (KeptBlocks(request.request_id, (1, 2, 3), 10, "length"),)


@pytest.mark.parametrize("status", [ABORTED, FAILED])
def test_a_prefill_that_ends_while_it_reads_has_its_blocks_freed_once(
    status: str, side: SchedulerSide
) -> None:
    """By the load's end, for which vLLM waits. It dies of an id that has been freed before."""
    request = borrowing()
    side.allocated(request, [5, 6, 7], side.matched(request, 0))
    side.take_orders()

    assert side.finished(request, status, []) == EndingRequest()

    cancel, forgo = side.take_orders()
    assert cancel == CancelOrder(request.request_id)
    assert isinstance(forgo, Forgo)
    assert not side.holding


# What the worker's half does with a loan.


def lend(rig: Rig, tokens: int = LENT_TOKENS) -> None:
    rig.worker.submit_prefill("kvt-1", range(10), 9, Keep(LEASE_SECONDS), Load(tokens, "loan"))


def borrow(request_id: str = "p1", tokens: int = LENT_TOKENS) -> tuple[Hold, Borrow]:
    request = asked(request_id, **{PREFILL_ID: "kvt-1", LENT: tokens})
    return Hold(request), Borrow(request, BLOCKS, tokens, 4)


def test_the_request_says_how_much_is_lent(rig: Rig) -> None:
    lend(rig)

    assert rig.calls.params == [{LENT: LENT_TOKENS}]


@pytest.mark.parametrize("error", [None, "called in"])
def test_a_loan_is_read_as_a_load_of_the_request(error: str | None, rig: Rig) -> None:
    lend(rig)
    rig.obey(*borrow())
    assert rig.said("start") == [("p1", BLOCKS, 4)]

    rig.worker.loaded("p1", error)

    ended = rig.results()
    assert ended == Results(frozenset(), frozenset({"p1"}), frozenset({"p1"} if error else ()))
    # And it is kept as any other prefill that a peer asked for.
    rig.obey(KeptBlocks("p1", BLOCKS, 9, "length"))
    assert rig.said("kept") == [("kvt-1", BLOCKS, 9, "length")]


def test_nobody_reads_what_is_lent_for_another_request(rig: Rig) -> None:
    """A client may name the prefill of another; and one may say what is not lent."""
    lend(rig)
    rig.obey(*borrow("p1"), *borrow("p2"))
    assert rig.said("start") == [("p1", BLOCKS, 4)]
    assert rig.results() == Results(frozenset(), frozenset({"p2"}), frozenset({"p2"}))


def test_no_more_is_read_than_is_lent(rig: Rig) -> None:
    lend(rig, 4)

    rig.obey(*borrow())

    assert rig.said("start") == []
    assert rig.results().failed == {"p1"}


def test_a_prefill_that_ends_while_it_reads_refuses_who_waits_for_it(rig: Rig) -> None:
    lend(rig)
    rig.obey(*borrow())

    rig.obey(CancelOrder("p1"), Forgo("p1", "aborted"))

    assert rig.said("cancel") == [("p1",)]
    assert rig.said("dropped") == [("kvt-1",)]
    assert rig.results() == Results(frozenset(), frozenset(), frozenset())
    rig.worker.loaded("p1", "cancelled")
    # Once, and nothing is said to be sent.
    assert rig.results() == Results(frozenset(), frozenset({"p1"}), frozenset({"p1"}))
    rig.worker.release("kvt-1")
    assert rig.results().sent == frozenset()


@pytest.mark.parametrize("end", ["kept", "dropped", "refused"])
def test_a_loan_does_not_outlive_its_prefill(end: str, rig: Rig) -> None:
    rig.calls.refuses = end == "refused"
    if end == "refused":
        with pytest.raises(ValueError, match="no API"):
            lend(rig)
    else:
        lend(rig)
    if end == "kept":
        rig.obey(borrow()[0], KeptBlocks("p1", BLOCKS, 9, "length"))
    if end == "dropped":
        rig.calls.failed("kvt-1", "our own API answered 503")

    assert rig.worker._loans == {}


# Bytes, between two workers.


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class Scene:
    """D has the first two blocks of a prompt, and puts it on the queue; P's worker has taken it."""

    def __init__(
        self, stack: ExitStack, backend: str = "tcp", *, borrows: bool = True, over: bool = True
    ) -> None:
        """`over`: the step of D in which it was put there."""
        url = f"memory://{uuid.uuid4().hex}"
        self.pair = Pair(backend, stack, queue=url, borrows=borrows)
        self.p, self.d = self.pair.p, self.pair.d
        self.p.loads["p1"] = Event()
        if over:
            self.fill_lent()
        self.d.fetch(QUEUED, skip=LENT_TOKENS)
        if over:
            self.d.results()
        host, port = self.p.connector.kv_address
        queue = open_queue(settings.read(url), "tiny")
        worker = PrefillWorker(queue, Serving("w", host, port, NEVER), Identity())
        worker.start()
        stack.callback(worker.wait, SECONDS)
        stack.callback(worker.cut)
        assert self.p.asked_for.wait(SECONDS)

    def fill_lent(self) -> None:
        for layer in range(LAYOUT.layers):
            for place, block_id in enumerate(D_BLOCKS[:2]):
                self.d.page(layer, block_id)[:] = content(layer, place)

    def read(self, skip: int = 0) -> None:
        """vLLM has given P's request blocks, of which the first ones hold what P has itself."""
        hold = self.pair.asked()
        self.p.obey([hold, Borrow(hold.asked, P_BLOCKS[:2], LENT_TOKENS, skip)])

    def has_read(self, places: Sequence[int] = (0, 1)) -> bool:
        return all(
            self.p.page(layer, P_BLOCKS[place]) == content(layer, place)
            for layer in range(LAYOUT.layers)
            for place in places
        )

    def compute_the_rest(self) -> None:
        self.p.obey([Progress("p1", P_BLOCKS, TOKENS)])
        for layer in range(LAYOUT.layers):
            self.p.page(layer, P_BLOCKS[2])[:] = content(layer, 2)
            self.p.computed(layer)
        self.p.obey([kept()])


@pytest.mark.parametrize("backend", ["shm", "tcp"])
def test_what_decode_has_crosses_and_only_the_rest_comes_back(
    backend: str, stack: ExitStack
) -> None:
    scene = Scene(stack, backend)
    assert scene.p.params == [{LENT: LENT_TOKENS}]

    scene.read()

    assert scene.p.outcome("p1").failed == frozenset()
    assert scene.has_read()
    scene.compute_the_rest()
    assert scene.d.outcome().failed == frozenset()
    assert scene.pair.same()
    # It counts before it says that it is done with the blocks.
    assert scene.p.freed.wait(SECONDS)
    assert scene.p.results().sent == {"p1"}
    block_bytes = LAYOUT.layers * LAYOUT.page_bytes
    counted = scene.p.connector.counters
    assert (counted.bytes_moved, counted.bytes_sent) == (2 * block_bytes, block_bytes)


def test_what_prefill_has_itself_does_not_cross(stack: ExitStack) -> None:
    scene = Scene(stack)

    scene.read(skip=4)

    assert scene.p.outcome("p1").failed == frozenset()
    assert scene.has_read([1])
    assert scene.p.connector.counters.bytes_moved == LAYOUT.layers * LAYOUT.page_bytes
    assert bytes(scene.p.page(0, P_BLOCKS[0])) == bytes(LAYOUT.page_bytes)


def test_where_a_failed_load_ends_a_request_none_is_taken(stack: ExitStack) -> None:
    scene = Scene(stack, borrows=False)

    assert scene.p.params == [{}]
    assert scene.p._loans == {}


def test_what_is_being_computed_is_read_when_it_is_there(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM gives a request the blocks of another that the same step computes."""
    scene = Scene(stack, over=False)
    waits = Event()

    def watched(event: DeviceEvent, until: float, stop: Callable[[], bool]) -> bool:
        waits.set()
        return wait(event, until, stop)

    monkeypatch.setattr(service, "wait", watched)
    scene.read()
    assert waits.wait(SECONDS)
    scene.fill_lent()

    scene.d.results()

    assert scene.p.outcome("p1").failed == frozenset()
    assert scene.has_read()


def test_a_loan_that_is_called_in_while_it_is_read_is_a_failed_load(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(stack)
    release = Offers.release

    def called_in(offers: Offers, key: str, offer_id: str, reader: object) -> ReleasedOffer:
        offers.forget(key)
        return release(offers, key, offer_id, reader)

    monkeypatch.setattr(Offers, "release", called_in)

    scene.read()

    assert scene.p.outcome("p1").failed == {"p1"}


def lost(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of the conversation."""

    def dies(*_: object) -> None:
        raise ConnectionResetError("D is gone")

    monkeypatch.setattr(scene.d.hand_over._offers, "wait", dies)


def leaves(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client does."""
    scene.d.obey([CancelOrder("d1")])
    assert scene.d.outcome().received == {"d1"}


def closed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.d.close()


@pytest.mark.parametrize("happens", [lost, leaves, closed])
def test_a_decode_that_does_not_lend_any_more_costs_no_request(
    happens: Callable[[Scene, pytest.MonkeyPatch], None],
    stack: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """vLLM hears of a failed load, and computes; what it has computed is D's, if D is still there."""
    scene = Scene(stack)
    happens(scene, monkeypatch)

    scene.read()

    ended = scene.p.outcome("p1")
    assert ended == Results(frozenset(), frozenset({"p1"}), frozenset({"p1"}))
    assert scene.p.connector.counters.failed == 1
    if happens is lost:
        scene.p.obey([Progress("p1", P_BLOCKS, TOKENS)])
        for layer in range(LAYOUT.layers):
            scene.pair.compute(layer)
        assert scene.d.outcome().failed == frozenset()
        assert scene.pair.same()
    scene.p.obey([kept()])
    sent = scene.p.results().sent
    if not sent:
        assert scene.p.freed.wait(SECONDS)
        sent = scene.p.results().sent
    assert sent == {"p1"}
    assert scene.p.held_blocks == 0


def test_what_is_lent_is_called_in_before_decodes_blocks_are_free(stack: ExitStack) -> None:
    scene = Scene(stack)
    offers = scene.d.hand_over._offers
    wait_until(lambda: len(offers._entries) == 1, "the loan")

    scene.d.obey([CancelOrder("d1")])

    assert scene.d.outcome().received == {"d1"}
    assert offers._entries == {}


def test_a_fetch_is_not_a_loan(rig: Rig) -> None:
    """Decode's own orders go by its kv_transfer_params, whatever is lent."""
    lend(rig)
    rig.plan("d1", Load(9, "ticket"))

    rig.obey(Fetch(asked("d1", **{PREFILL_ID: "kvt-1"}), BLOCKS, 9, 0))

    assert rig.said("start") == [("d1", BLOCKS, 0)]
    assert rig.worker._loans.keys() == {"kvt-1"}
