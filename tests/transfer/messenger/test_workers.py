"""Engines whose ranks are processes of their own hand over as one, whatever their numbers.

Each worker has its own region, service and book of pages, as a vLLM worker has; all of them take
the same blocks for a request, as vLLM's scheduler gives them out.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from pdgate.transfer.messenger import incoming, shards, workers
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.peer import Peer
from pdgate.transfer.messenger.push import OutgoingPush
from pdgate.transfer.messenger.shape import ALL
from pdgate.transfer.messenger.source import Source
from pdgate.transfer.messenger.workers import HeldElsewhere, MessengerWorker
from pdgate.transfer.plan.layout import KvLayout
from pdgate.transfer.runtime.fleet import Identity
from tests.support.waiting import wait_until
from tests.transfer.messenger.nodes import SECONDS, Node, shape_of
from tests.transfer.messenger.test_asking_for_a_push import hold_back
from tests.transfer.messenger.test_layouts import BIG, HND, LATENT, MODES, NHD, TOKENS

PAIRS = {
    "tp 1 to 1": (HND, HND),
    "tp 2 to 1": (replace(HND, tp=2), HND),
    "tp 1 to 2": (HND, replace(HND, tp=2)),
    "tp 2 to 2": (replace(NHD, tp=2), replace(NHD, tp=2)),
    "tp 2 to 4, NHD to HND": (replace(NHD, tp=2), replace(HND, tp=4)),
    "pp 2 to 1": (replace(HND, stages=(1, 2)), HND),
    "pp 1 to 2": (HND, replace(HND, stages=(2, 1))),
    "pp 2 and tp 2 to tp 2": (replace(HND, stages=(1, 2), tp=2), replace(HND, tp=2)),
    "heads held twice, tp 8 to 2": (replace(HND, tp=8), replace(HND, tp=2)),
    "a latent, tp 4 to 1": (replace(LATENT, tp=4), LATENT),
    "a latent, tp 2 to 4": (replace(LATENT, tp=2), replace(LATENT, tp=4)),
    "blocks of 8 to 4, tp 1 to 2": (BIG, replace(HND, tp=2)),
    "blocks of 4 to 8, tp 2 to 1": (replace(HND, tp=2), BIG),
}


class Engine:
    """Workers with a rank each, or with those of `held`."""

    def __init__(
        self,
        layout: KvLayout,
        stack: ExitStack,
        backend: str = "tcp",
        held: Sequence[tuple[int, ...]] = (),
    ) -> None:
        held = held or [(rank,) for rank in range(shape_of(layout).ranks)]
        self.layout = layout
        self.nodes = [
            stack.enter_context(closing(Node(backend, layout, ranks=ranks))) for ranks in held
        ]
        for node in self.nodes:
            node.service.workers = [one.worker for one in self.nodes]

    @property
    def port(self) -> int:
        return self.nodes[0].port

    def load(self, key: str, port: int, **mode: Any) -> None:
        for node in self.nodes:
            node.load(key, port, TOKENS, **mode)

    def results(self) -> list[str | None]:
        return [node.result() for node in self.nodes]

    def freed(self) -> list[str]:
        return [node.freed.get(timeout=SECONDS) for node in self.nodes]


@contextmanager
def two(pair: tuple[KvLayout, KvLayout]) -> Iterator[tuple[Engine, Engine]]:
    with ExitStack() as stack:
        yield Engine(pair[0], stack), Engine(pair[1], stack)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "TILE_TOKENS", 8)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_each_rank_gets_its_share_and_every_worker_its_pages_back(
    pair: tuple[KvLayout, KvLayout], mode: dict[str, Any]
) -> None:
    with two(pair) as (prefill, decode):
        contents = [node.expect("k", TOKENS) for node in prefill.nodes]
        for node in prefill.nodes:
            node.computed("k", 7)
        decode.load("k", prefill.port, skip=1, **mode)
        # Ranks do not compute at the same time, the last one first of all.
        for node in reversed(prefill.nodes):
            node.computed("k", 19)
            node.computed("k", TOKENS)
            node.kept("k", TOKENS)

        assert decode.results() == [None] * len(decode.nodes)
        assert all(node.holds("k", contents[0], skip=1) for node in decode.nodes)
        assert prefill.freed() == ["k"] * len(prefill.nodes)
        assert all(node.used == 0 for node in prefill.nodes)
        unit = min(pair[0].block_tokens, pair[1].block_tokens)
        moved = shape_of(pair[1]).bytes_of(-(-TOKENS // unit) * unit - pair[1].block_tokens)
        assert sum(node.counters.bytes_moved for node in decode.nodes) == moved
        assert sum(node.counters.bytes_sent for node in prefill.nodes) == moved


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_a_worker_of_stages_that_are_not_neighbours_exchanges_its_layers(
    side: str, mode: dict[str, Any]
) -> None:
    """The write of a layer between them, by itself, was one of nothing, and never ended."""
    stages, held = replace(HND, stages=(1, 1, 1)), [(0, 2), (1,)]
    with ExitStack() as stack:
        prefill = Engine(*((stages, stack, "tcp", held) if side == "prefill" else (HND, stack)))
        decode = Engine(*((stages, stack, "tcp", held) if side == "decode" else (HND, stack)))
        contents = [node.expect("k", TOKENS) for node in prefill.nodes]
        for node in prefill.nodes:
            node.kept("k", TOKENS)
        decode.load("k", prefill.port, **mode)

        assert decode.results() == [None] * len(decode.nodes)
        assert all(node.holds("k", contents[0]) for node in decode.nodes)
        assert prefill.freed() == ["k"] * len(prefill.nodes)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_workers_from_which_nothing_is_taken_are_released(mode: dict[str, Any]) -> None:
    """Whichever of several copies the key has drawn, the first worker's own one among them."""
    with two((replace(LATENT, tp=2), LATENT)) as (prefill, decode):
        senders = set()
        for key in (f"call-{number}" for number in range(10)):
            for node in prefill.nodes:
                content = node.expect(key, TOKENS)
                node.kept(key, TOKENS)
            decode.load(key, prefill.port, **mode)

            assert decode.results() == [None]
            assert decode.nodes[0].has(key, content)
            assert prefill.freed() == [key] * 2
            decode.nodes[0].give_back(key)
            pairs = shards.pairs(prefill.nodes[0].shape, decode.nodes[0].shape, key)
            senders |= {pair.link.source.tp for pair in pairs}
        assert senders == {0, 1}


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_the_comparison_sees_a_share_of_another_prompt(mode: dict[str, Any]) -> None:
    with two((replace(HND, tp=2), HND)) as (prefill, decode):
        first, second = prefill.nodes
        content = first.expect("k", TOKENS)
        second.expect("k", TOKENS)
        second.arrays.fill(second.blocks["k"], content + 1)
        for node in prefill.nodes:
            node.kept("k", TOKENS)
        decode.load("k", prefill.port, **mode)

        assert decode.results() == [None]
        assert not decode.nodes[0].has("k", content)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_worker_that_drops_its_part_fails_the_load(mode: dict[str, Any]) -> None:
    """And what still waits for another worker's part ends at once, not at its deadline."""
    with two((replace(HND, stages=(1, 2)), HND)) as (prefill, decode):
        first, second = prefill.nodes
        for node in prefill.nodes:
            node.expect("k", TOKENS)
        decode.load("k", prefill.port, **mode)
        wait_until(lambda: asked_for(second), "decode, which asks the second worker")
        second.offers.drop("k", "preempted")
        second.pushes.drop("k", "preempted")

        (error,) = decode.results()

        assert error is not None
        assert ("preempted" in error) or ("unknown key" in error)
        assert decode.nodes[0].used == 0
        # It did compute, and then there is no reader.
        wait_until(lambda: not first.blocks, "the first worker's pages")


def asked_for(node: Node) -> bool:
    return bool(node.pushes._pushes or node.offers._waiting)


def test_a_share_that_fails_ends_the_others_of_its_call() -> None:
    """Decode's call has failed with it, so nothing is to be written for the others."""
    with two((HND, replace(HND, tp=2))) as (prefill, decode):
        (node,) = prefill.nodes
        node.expect("k", TOKENS)
        node.computed("k", 7)
        decode.load("k", prefill.port)
        wait_until(lambda: len(node.pushes._pushes.get("k", ())) == 2, "both shares")
        one, other = decode.nodes

        one.loads.cancel("k")

        assert one.result() == "cancelled"
        assert "the decode engine gave up" in (other.result() or "")
        assert node.aborted.get(timeout=SECONDS) == "k"
        assert (node.used, one.used, other.used) == (0, 0, 0)


def test_a_share_that_lands_when_all_is_dropped_is_the_last_of_it() -> None:
    """The other workers are refused from now on; prefill kept its pages for them, for ever."""
    with two((HND, replace(HND, tp=2))) as (prefill, decode):
        (node,) = prefill.nodes
        content = node.expect("k", TOKENS)
        node.kept("k", TOKENS)
        held = hold_back(node.backend)
        one, other = decode.nodes
        one.load("k", prefill.port, TOKENS)
        assert held.begun.acquire(timeout=SECONDS)

        node.offers.drop("k", "its lease ended")
        assert node.pushes.drop("k", "its lease ended")
        held.go_on()

        assert one.result() is None
        assert one.has("k", content)
        assert node.freed.get(timeout=SECONDS) == "k"
        assert (node.counters.lingering, node.counters.sent) == (0, 0)
        other.load("k", prefill.port, TOKENS)
        assert "its lease ended" in (other.result() or "")


def test_a_prompt_that_decode_has_already_is_let_go_by_every_worker() -> None:
    layouts = (replace(HND, stages=(1, 2), tp=2), replace(HND, tp=2))
    with two(layouts) as (prefill, decode):
        for node in prefill.nodes:
            node.expect("k", TOKENS)
            node.kept("k", TOKENS)
        for node in decode.nodes:
            node.loads.farewell(Source("127.0.0.1", prefill.port, "k", SECONDS))

        assert prefill.freed() == ["k"] * 4


def test_a_share_is_given_once() -> None:
    with two((HND, replace(HND, tp=2))) as (prefill, decode):
        (node,) = prefill.nodes
        content = node.expect("k", TOKENS)
        node.kept("k", TOKENS)
        one, other = decode.nodes
        one.load("k", prefill.port, TOKENS)
        assert one.result() is None
        one.give_back("k")

        one.load("k", prefill.port, TOKENS)
        assert "taken key" in (one.result() or "")
        other.load("k", prefill.port, TOKENS)

        assert other.result() is None
        assert other.has("k", content)
        assert prefill.freed() == ["k"]


@pytest.mark.parametrize("asked_before_it_was_computed", [False, True])
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_share_that_is_given_up_before_it_was_asked_for_frees_the_rest(
    mode: dict[str, Any], asked_before_it_was_computed: bool
) -> None:
    """Else prefill would keep the pages for a reader that never comes, until its lease ends."""
    with two((HND, replace(HND, tp=2))) as (prefill, decode):
        (node,) = prefill.nodes
        node.expect("k", TOKENS)
        offer = node.offers._entries["k"]
        if asked_before_it_was_computed:
            decode.nodes[0].load("k", prefill.port, TOKENS, **mode)
            if mode != MODES["pull"]:
                wait_until(lambda: any(one.began for one in pushes_of(node)), "the push to begin")
        node.kept("k", TOKENS)
        if not asked_before_it_was_computed:
            decode.nodes[0].load("k", prefill.port, TOKENS, **mode)
        assert decode.nodes[0].result() is None
        # Decode may know first that all has landed.
        wait_until(lambda: not (pushes_of(node) or offer.pushers), "prefill's end of the push")

        with Peer(("127.0.0.1", prefill.port), "e", time.monotonic() + 60, Identity()) as other:
            assert other.abandon("k")

        assert node.freed.get(timeout=SECONDS) == "k"
        assert node.used == 0


def pushes_of(node: Node) -> list[OutgoingPush]:
    return node.pushes._pushes.get("k", [])


TP2 = shape_of(replace(HND, tp=2))
A, B = MessengerWorker("h", 1, (0,)), MessengerWorker("h", 2, (1,))


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ([A], Why.BROKEN),
        ([A, A], Why.BROKEN),
        ([A, MessengerWorker("h", 2, ())], Why.BROKEN),
        ([A, MessengerWorker("h", 2, (7,))], Why.WRONG_SHAPE),
        ([A, MessengerWorker("h", 70000, (1,))], Why.BROKEN),
        ([A, MessengerWorker("", 2, (1,))], Why.BROKEN),
    ],
)
def test_workers_that_cannot_be_are_not_asked(told: list[MessengerWorker], why: Why) -> None:
    with pytest.raises(HandOverError) as caught:
        workers.to_ask(HeldElsewhere("e", TP2, told), shape_of(HND), ALL, "k")

    assert caught.value.why is why
