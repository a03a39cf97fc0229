"""Pages cross between two workers, whatever else happens to the request."""

import math
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from pdgate.engine.layout import Layout
from pdgate.engine.vllm.orders import AskedRequest, CancelOrder, Drop, Evict, Hold, Progress
from pdgate.engine.vllm.reports import Results
from pdgate.engine.vllm.worker_side import SLOW_EVICTION_SECONDS
from pdgate.transfer.messenger.offers import Dropped
from pdgate.transfer.runtime.jobs import TransferPlan
from pdgate.transfer.runtime.moving import MoveOrder
from pdgate.transfer.runtime.running import RunningTransfer
from pdgate.transfer.tcp.backend import TcpBackend
from tests.engine.vllm.two_workers import (
    D_BLOCKS,
    LAYOUT,
    P_BLOCKS,
    PROMPT,
    SECONDS,
    TOKENS,
    Engine,
    Pair,
    asked_of,
    content,
    kept,
)
from tests.support.told import Told
from tests.support.waiting import wait_until


@pytest.fixture(params=["shm", "tcp"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(request.param, stack)


def test_decode_has_all_layers_before_the_prefill_has_ended(pair: Pair) -> None:
    """They were pushed from the hook of each layer; nobody said yet that the request is done."""
    pair.p.obey([pair.delegated(), Progress("p1", P_BLOCKS, TOKENS)])
    for layer in range(LAYOUT.layers):
        assert not pair.d.loads["d1"].is_set()
        pair.compute(layer)

    ended = pair.d.outcome()

    assert ended == Results(frozenset(), frozenset({"d1"}), frozenset())
    assert pair.same()
    pair.p.obey([kept()])
    assert pair.p.freed.wait(SECONDS)
    assert pair.p.results().sent == {"p1"}
    assert pair.p.held_blocks == 0


def test_a_prompt_in_chunks_arrives_whole(pair: Pair) -> None:
    pair.p.obey([pair.delegated(), Progress("p1", P_BLOCKS[:2], 6)])
    for layer in range(LAYOUT.layers):
        pair.compute(layer)
    pair.p.obey([Progress("p1", P_BLOCKS, TOKENS)])
    for layer in range(LAYOUT.layers):
        pair.compute(layer)

    assert pair.d.outcome().failed == frozenset()
    assert pair.same()


def test_staged_decode_gets_what_was_kept(pair: Pair) -> None:
    pair.p.obey([Hold(AskedRequest("p1", "r", PROMPT, {"do_remote_decode": True}))])
    for layer in range(LAYOUT.layers):
        pair.compute(layer)
    pair.p.obey([kept(len(PROMPT))])

    pair.d.fetch({"do_remote_prefill": True, **pair.at_p})

    assert pair.d.outcome().failed == frozenset()
    assert pair.same()
    assert pair.p.freed.wait(SECONDS)
    assert pair.p.results().sent == {"p1"}


@pytest.mark.parametrize(
    "end", [Drop("p1", "aborted"), Evict("p1")], ids=lambda it: type(it).__name__
)
def test_a_prefill_that_does_not_end_fails_decode_and_frees_both(
    end: Drop | Evict, pair: Pair
) -> None:
    pair.p.obey([pair.delegated(), Progress("p1", P_BLOCKS, TOKENS)])
    pair.compute(0)

    pair.p.obey([end])

    assert pair.d.outcome().failed == {"d1"}
    if isinstance(end, Evict):
        pair.p.obey([kept()])
    sent = pair.p.results().sent
    if not sent:
        # Decode was in the middle of its blocks.
        assert pair.p.freed.wait(SECONDS)
        sent = pair.p.results().sent
    assert sent == {"p1"}


@pytest.mark.parametrize("backend", ["shm", "tcp"])
def test_a_preempted_prefill_does_not_wait_for_a_frozen_decode(backend: str) -> None:
    """What is written to it is broken off: vLLM's main thread waited for the end of its lease."""
    with ExitStack() as stack:
        p = Engine(backend, "prefill", stack)
        module = "tests.engine.vllm.decode_process"
        d = stack.enter_context(Told(module, backend, *p.connector.kv_address))
        assert d.answer() == "asked"
        p.obey([asked_of(p), Progress("p1", P_BLOCKS, TOKENS)])
        pushes = p.hand_over._pushes._pushes
        wait_until(
            lambda: [one for of_key in pushes.values() for one in of_key if one.began], "a push"
        )
        d.freeze()
        for layer in range(LAYOUT.layers - 1):
            p.computed(layer)

        began = time.monotonic()
        p.evict([Evict("p1")])

        assert time.monotonic() - began < SLOW_EVICTION_SECONDS
        assert not pushes
        d.thaw()
        assert d.do("outcome") == "failed"
        p.obey([kept()])
        assert p.results().sent == {"p1"}


def test_what_is_in_flight_when_a_lease_ends_lands(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM does not need the blocks yet; of a slow link decode got nothing."""
    begun, go_on = threading.Event(), threading.Event()
    with ExitStack() as stack:
        pair = Pair("tcp", stack)
        plan = TcpBackend.plan

        def plan_to_wait(self: TcpBackend, order: MoveOrder) -> TransferPlan:
            planned = plan(self, order)

            def work(transfer: RunningTransfer) -> None:
                transfer.on_interrupt(go_on.set)
                begun.set()
                assert go_on.wait(SECONDS)
                transfer.on_interrupt(None)
                planned.work(transfer)

            return TransferPlan(work)

        monkeypatch.setattr(TcpBackend, "plan", plan_to_wait)
        pair.p.obey([pair.delegated(), Progress("p1", P_BLOCKS, TOKENS)])
        for layer in range(LAYOUT.layers):
            pair.compute(layer)
        pair.p.obey([kept()])
        assert begun.wait(SECONDS)
        pair.p._now = lambda: math.inf

        assert pair.p.results().sent == frozenset()
        go_on.set()

        assert pair.d.outcome().failed == frozenset()
        assert pair.same()
        assert pair.p.freed.wait(SECONDS)
        assert pair.p.results().sent == {"p1"}


def test_a_cancelled_load_ends_on_both_sides(pair: Pair) -> None:
    hold = pair.delegated()
    pair.p.obey([hold])

    pair.d.obey([CancelOrder("d1")])

    assert pair.d.outcome().received == {"d1"}
    pair.p.obey([kept()])
    sent = pair.p.results().sent
    if not sent:
        # Prefill had not heard of it yet.
        assert pair.p.freed.wait(SECONDS)
        sent = pair.p.results().sent
    assert sent == {"p1"}
    assert pair.p.hand_over._pushes._requests == {}


def test_what_is_kept_while_decode_leaves_is_freed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The push is over, and what it was for is about to be dropped: it was offered until its lease ended."""
    offers = pair.p.hand_over._offers
    drop = offers.drop

    def late(request_id: str, why: str) -> Dropped:
        monkeypatch.setattr(offers, "drop", drop)
        pair.p.obey([kept()])
        return drop(request_id, why)

    hold = pair.delegated()
    pair.p.obey([hold, Progress("p1", P_BLOCKS, TOKENS)])
    pair.compute(0)
    landed = pair.d.page(0, D_BLOCKS[0])
    wait_until(lambda: landed == content(0, 0), "the push to have begun")
    monkeypatch.setattr(offers, "drop", late)

    pair.d.obey([CancelOrder("d1")])

    assert pair.d.outcome().received == {"d1"}
    assert pair.p.freed.wait(SECONDS)
    assert pair.p.results().sent == {"p1"}
    assert pair.p.held_blocks == 0


def test_another_layout_is_refused_with_both_sides_numbers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = Layout(layers=3, blocks=16, kv_heads=2, block_tokens=4, head_dim=16)
    caplog.set_level("INFO")
    with ExitStack() as stack:
        pair = Pair("tcp", stack, d_layout=other)
        pair.p.obey([Hold(AskedRequest("p1", "r", PROMPT, {"do_remote_decode": True})), kept(10)])

        pair.d.fetch({"do_remote_prefill": True, **pair.at_p})

        assert pair.d.outcome().failed == {"d1"}
    assert "head_dim" in caplog.text
    assert "16" in caplog.text
