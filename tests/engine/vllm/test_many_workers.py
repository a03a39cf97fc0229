"""Engines of several vLLM workers, started as vLLM starts them, one thread for the start of each.

The test is vLLM and P's API: it gives every worker the same orders, computes layer by layer, and turns
the prefill that P's first worker asks for into a request that all of P's workers see.
"""

import json
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pdgate.cluster.queue import settings as queue_settings
from pdgate.cluster.queue.opening import open_queue
from pdgate.engine.hand_over.two_sided import ForReaders
from pdgate.engine.prefill_worker.worker import PrefillWorker, Serving
from pdgate.engine.vllm import running, settings
from pdgate.engine.vllm.census import Seat, WorkerShare, taken
from pdgate.engine.vllm.intent import LENT, PREFILL_ID
from pdgate.engine.vllm.orders import (
    AskedRequest,
    Borrow,
    CancelOrder,
    Fetch,
    Hold,
    KeptBlocks,
    Progress,
)
from pdgate.engine.vllm.passes import PASS, Passes
from pdgate.engine.vllm.prefill_call import NOTHING, Failed, PromptCalls
from pdgate.engine.vllm.running import RunningWorker
from pdgate.transfer.messenger.messages import Lent
from pdgate.transfer.plan import memory
from pdgate.transfer.plan.layout import KvLayout, LayoutOrder
from pdgate.transfer.runtime.fleet import Identity
from tests.engine.vllm.tensors import Tensor
from tests.support import waiting
from tests.support.kv_layouts import PLAIN
from tests.support.kv_ranks import BLOCKS, Arrays, Cache, cache, share

SECONDS = waiting.PATIENCE_SECONDS
TOKENS = 10
PROMPT = tuple(range(TOKENS + 1))
P_BLOCKS, D_BLOCKS = (9, 2, 5), (4, 11, 7)

# As vLLM's: K and V of a head and token side by side, or a latent; all in one plane.
HND = replace(PLAIN, planes=1, head_dim=4, stages=(3,))
NHD = replace(HND, order=LayoutOrder.NHD)
MLA = replace(HND, kv_heads=1, head_dim=9)

PAIRS = {
    "tp 2 to 1": (replace(HND, tp=2), HND),
    "tp 1 to 2": (HND, replace(HND, tp=2)),
    "tp 2 to 2": (replace(NHD, tp=2), replace(NHD, tp=2)),
    "tp 2 NHD to tp 1 HND": (replace(NHD, tp=2), HND),
    "pp 2 to 1": (replace(HND, stages=(2, 1)), HND),
    "pp 1 to 2": (HND, replace(HND, stages=(1, 2))),
    "pp 2 to tp 2": (replace(HND, stages=(2, 1)), replace(HND, tp=2)),
    "more ranks than heads, tp 8 to 4": (replace(NHD, tp=8), replace(HND, tp=4)),
    "MLA, tp 2 to 1": (replace(MLA, tp=2), MLA),
    "MLA, tp 1 to 2": (MLA, replace(MLA, tp=2)),
    "blocks of 8 to 4, tp 1 to 2": (replace(HND, block_tokens=8), replace(HND, tp=2)),
}


class Api(PromptCalls):
    """What P's first worker sends to its own API."""

    def __init__(self) -> None:
        self.asked: list[Mapping[str, Any]] = []
        self.came = threading.Event()

    def start(
        self, prefill_id: str, prompt: Sequence[int], params: Mapping[str, Any] = NOTHING
    ) -> None:
        self.asked.append({"do_remote_decode": True, PREFILL_ID: prefill_id, **params})
        self.came.set()

    def cancel(self, prefill_id: str) -> None:
        """The request would be aborted."""


class Gathering:
    """What vLLM's process groups do."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count)
        self._said: dict[int, Any] = {}

    def of(self, number: int) -> Callable[[Any], list[Any]]:
        def gather(mine: Any) -> list[Any]:
            self._said[number] = mine
            self._barrier.wait(SECONDS)
            found = [self._said[other] for other in sorted(self._said)]
            self._barrier.wait(SECONDS)
            return found

        return gather


class Engine:
    def __init__(
        self, layout: KvLayout, role: str, mode: str, stack: ExitStack, queue: str = ""
    ) -> None:
        self.layout = layout
        ranks = list(layout.ranks(0))
        memories = {rank: memory.packed(layout, rank, BLOCKS) for rank in ranks}
        regions = {
            rank: np.zeros(memory.end(layout, one), np.uint8) for rank, one in memories.items()
        }
        self.arrays = Arrays(layout, memories, regions)
        gathering = Gathering(len(ranks))
        extra = {"mover": "threads", "mode": mode, "queue": queue}
        read = settings.read(role, 0, extra, "tiny", recomputes=True)
        self.workers: dict[int, RunningWorker] = {}
        errors: list[BaseException] = []

        def start(number: int) -> None:
            rank = ranks[number]
            seat = Seat(rank.stage, rank.tp, len(layout.stages), layout.tp, layout.kv_heads)
            tensors = self._tensors(number)
            try:
                self.workers[number] = RunningWorker.start(
                    read, "m", tensors, [], "", _no_rebase, seat, gathering.of(number)
                )
            except BaseException as error:
                errors.append(error)
                raise

        threads = [threading.Thread(target=start, args=(number,)) for number in range(len(ranks))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
        assert errors == []
        for worker in self.workers.values():
            stack.enter_context(closing(worker))

    @property
    def at(self) -> dict[str, Any]:
        host, port = self.workers[0].worker.connector.kv_address
        return {"remote_host": host, "remote_port": port}

    def obey(self, *orders: Any) -> None:
        for number in sorted(self.workers):
            self.workers[number].worker.obey(orders)

    def compute(self) -> None:
        """Each worker its own layers, the last worker first."""
        for number in sorted(self.workers, reverse=True):
            for layer in self.workers[number].layers.values():
                self.workers[number].worker.computed(layer)

    def ended(self, what: str) -> dict[int, frozenset[str]]:
        """What all workers report, when all have."""
        said: dict[int, frozenset[str]] = {number: frozenset() for number in self.workers}

        def all_have() -> bool:
            for number, one in self.workers.items():
                said[number] |= getattr(one.worker.results(), what)
            return all(said.values())

        waiting.wait_until(all_have, f"reports of {what} by all workers")
        return said

    def has(self, content: Cache) -> bool:
        return all(
            np.array_equal(
                self.arrays.gather(D_BLOCKS, rank, TOKENS), share(self.layout, rank, content)
            )
            for rank in self.arrays.regions
        )

    def _tensors(self, number: int) -> dict[str, Tensor]:
        layout, rank = self.layout, list(self.arrays.regions)[number]
        base = self.arrays.regions[rank].ctypes.data
        heads, size, row = layout.rank_heads, layout.block_tokens, layout.head_dim
        page = heads * size * row
        strides = (page, size * row, row, 1)
        if layout.order is LayoutOrder.NHD:
            strides = (page, row, heads * row, 1)
        return {
            f"layers.{layer}": Tensor(
                base + 2 * place * BLOCKS * page,
                (BLOCKS, heads, size, row),
                "torch.int16",
                strides,
                storage=base,
                item_bytes=2,
            )
            for place, layer in enumerate(layout.layers_of(rank))
        }


def _no_rebase(tensors: object, to: memoryview) -> None:
    raise AssertionError("with threads the memory stays where it is")


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    made = Api()

    def calls(
        api: str, model: str, seconds: float, failed: Failed, rank: int | None
    ) -> PromptCalls:
        return made

    monkeypatch.setattr(running, "PrefillCalls", calls)
    return made


@contextmanager
def pair_of(
    layouts: tuple[KvLayout, KvLayout], mode: str = "layerwise", queue: str = ""
) -> Iterator[tuple[Engine, Engine]]:
    """`queue`: decode's."""
    with ExitStack() as stack:
        prefill = Engine(layouts[0], "kv_producer", mode, stack)
        yield prefill, Engine(layouts[1], "kv_consumer", mode, stack, queue)


def blocks_for(layout: KvLayout, blocks: tuple[int, ...]) -> tuple[int, ...]:
    return blocks[: -(-TOKENS // layout.block_tokens)]


def delegated(prefill: Engine, decode: Engine, api: Api) -> Cache:
    """D's call makes P compute a prompt, chunk by chunk. Its end is not told yet."""
    content = cache(prefill.layout, TOKENS)
    needed = blocks_for(prefill.layout, P_BLOCKS)
    decode.obey(Fetch(AskedRequest("d1", "r", PROMPT, prefill.at), D_BLOCKS, TOKENS, 0))
    assert api.came.wait(SECONDS)
    prefill.obey(Hold(AskedRequest("p1", "r", PROMPT[:TOKENS], api.asked[0])))
    prefill.arrays.fill(needed, content)
    prefill.obey(Progress("p1", needed[:2], 7))
    prefill.compute()
    prefill.obey(Progress("p1", needed, TOKENS))
    prefill.compute()
    return content


@pytest.mark.parametrize("mode", ["layerwise", "pull"])
@pytest.mark.parametrize("layouts", PAIRS.values(), ids=PAIRS)
def test_every_worker_of_d_gets_its_share_of_a_prefill_that_it_asked_for(
    layouts: tuple[KvLayout, KvLayout], mode: str, api: Api
) -> None:
    with pair_of(layouts, mode) as (prefill, decode):
        content = delegated(prefill, decode, api)
        end = KeptBlocks("p1", blocks_for(layouts[0], P_BLOCKS), TOKENS, "length")
        if mode == "pull":
            prefill.obey(end)

        received = decode.ended("received")
        assert set(received.values()) == {frozenset({"d1"})}
        assert decode.has(content)
        if mode == "layerwise":
            # Each layer was on its way when it was computed: nothing waited for this.
            prefill.obey(end)
        # Once, by the first worker; and every worker of P gives its blocks back.
        assert len(api.asked) == 1
        assert set(prefill.ended("sent").values()) == {frozenset({"p1"})}
        assert all(one.worker.held_blocks == 0 for one in prefill.workers.values())


LENT_TOKENS = 8
"""Two of decode's blocks."""


@contextmanager
def lending(layout: KvLayout, api: Api) -> Iterator[tuple[Engine, Engine, Cache, AskedRequest]]:
    """Decode, of one worker, has put a prompt on the queue of which it has the beginning, and prefill's worker has it."""
    url = f"memory://{uuid.uuid4().hex}"
    to = replace(layout, block_tokens=4, tp=1, stages=(3,))
    with pair_of((layout, to), queue=url) as (prefill, decode), ExitStack() as stack:
        content = cache(layout, TOKENS)
        decode.arrays.fill(D_BLOCKS, content)
        wants = AskedRequest("d1", "r", PROMPT, {"do_queued_prefill": True})
        decode.obey(Fetch(wants, D_BLOCKS, TOKENS, LENT_TOKENS))
        decode.workers[0].worker.results()
        host, port = prefill.workers[0].worker.connector.kv_address
        queue = open_queue(queue_settings.read(url), "m")
        beside = PrefillWorker(queue, Serving("w", host, port, SECONDS), Identity())
        beside.start()
        stack.callback(beside.wait, SECONDS)
        stack.callback(beside.cut)
        assert api.came.wait(SECONDS)
        yield prefill, decode, content, AskedRequest("p1", "r", PROMPT[:TOKENS], api.asked[0])
        decode.obey(CancelOrder("d1"))
        assert decode.ended("received")


@pytest.mark.parametrize(
    "layout",
    [PAIRS[name][0] for name in PAIRS if PAIRS[name][0] != HND]
    + [replace(HND, block_tokens=8, tp=2)],
    ids=str,
)
def test_every_worker_of_p_reads_its_share_of_what_d_lends(layout: KvLayout, api: Api) -> None:
    with lending(layout, api) as (prefill, _, content, asked):
        assert asked.params[LENT] == LENT_TOKENS
        blocks = P_BLOCKS[: -(-LENT_TOKENS // layout.block_tokens)]

        prefill.obey(Hold(asked), Borrow(asked, blocks, LENT_TOKENS, 0))

        assert set(prefill.ended("received").values()) == {frozenset({"p1"})}
        for rank in prefill.arrays.regions:
            read = prefill.arrays.gather(blocks, rank, LENT_TOKENS)
            computed = share(layout, rank, content)[:, :, :, :LENT_TOKENS]
            assert np.array_equal(read, computed)
        assert all(one.worker.take_failed() == set() for one in prefill.workers.values())


def test_what_one_worker_of_p_cannot_read_is_computed_by_all(api: Api) -> None:
    """vLLM takes a load for failed that one of its workers has not got."""
    with lending(replace(HND, tp=2), api) as (prefill, _, _, asked):
        prefill.obey(Hold(asked))
        prefill.workers[1].worker._loans.clear()
        prefill.obey(Borrow(asked, P_BLOCKS[:2], LENT_TOKENS, 0))

        assert set(prefill.ended("received").values()) == {frozenset({"p1"})}
        failed = [prefill.workers[number].worker.take_failed() for number in (0, 1)]
        assert failed[1] == {"p1"}


def test_p_answers_for_all_of_its_workers(api: Api) -> None:
    """vllm-nixl: D reads what the answer of P's first worker leads to."""
    with pair_of((replace(HND, tp=2), replace(HND, stages=(1, 2)))) as (prefill, decode):
        forms = [one.hand_over.answer_form() for one in prefill.workers.values()]
        assert len({form["remote_engine_id"] for form in forms}) == 1
        assert forms[0]["tp_size"] == 2
        content = cache(HND, TOKENS)
        prefill.arrays.fill(P_BLOCKS, content)
        wishes = {"do_remote_decode": True, "do_remote_prefill": False}
        prefill.obey(Hold(AskedRequest("p1", "r", PROMPT, wishes)))
        prefill.obey(KeptBlocks("p1", P_BLOCKS, TOKENS, "length"))
        answer = {
            **forms[0],
            "remote_request_id": "p1",
            "remote_block_ids": [list(P_BLOCKS)],
            "remote_num_tokens": TOKENS,
        }
        decode.obey(Fetch(AskedRequest("d1", "r", PROMPT, answer), D_BLOCKS, TOKENS, 0))

        assert set(decode.ended("received").values()) == {frozenset({"d1"})}
        assert decode.has(content)
        assert set(prefill.ended("sent").values()) == {frozenset({"p1"})}


def test_a_load_that_fails_at_one_worker_is_said_at_once(api: Api) -> None:
    """So that the scheduler can cancel it at the others, whose peers may be slow to fail."""
    with pair_of((HND, replace(HND, tp=2))) as (_, decode):
        nowhere = {"remote_host": "127.0.0.1", "remote_port": 1, "do_remote_prefill": True}
        decode.obey(Fetch(AskedRequest("d1", "r", PROMPT, nowhere), D_BLOCKS, TOKENS, 0))

        assert decode.ended("failed")
        assert all(one.worker.take_failed() == {"d1"} for one in decode.workers.values())
        decode.obey(CancelOrder("d1"))


def test_other_workers_of_p_believe_only_a_pass_of_the_first(api: Api) -> None:
    """Else a client of P's API could offer its own prompt under the key of another's."""
    with pair_of((replace(HND, tp=2), HND)) as (prefill, decode):
        decode.obey(Fetch(AskedRequest("d1", "r", PROMPT, prefill.at), D_BLOCKS, TOKENS, 0))
        assert api.came.wait(SECONDS)
        real = api.asked[0]
        forged = {**real, PREFILL_ID: "kvt-forged"}
        prefill.obey(Hold(AskedRequest("p2", "r", PROMPT, forged)))
        prefill.obey(KeptBlocks("p2", P_BLOCKS, TOKENS, "length"))

        assert set(prefill.ended("sent").values()) == {frozenset({"p2"})}
        decode.obey(CancelOrder("d1"))
        assert decode.ended("failed")


def test_a_pass_is_for_one_prefill_key_and_readers() -> None:
    passes = Passes(b"secret")
    whose = ForReaders("key", ("a", "b"))
    issued = passes.issue("kvt-1", whose)

    assert passes.read("kvt-1", issued) == (whose, None)
    assert passes.read("kvt-2", issued) is None
    assert passes.read("kvt-1", {PASS: {**issued[PASS], "key": "other"}}) is None
    assert passes.read("kvt-1", {PASS: {**issued[PASS], "readers": []}}) is None
    assert passes.read("kvt-1", {PASS: {**issued[PASS], "seal": "\u00e9"}}) is None
    assert passes.read("kvt-1", {PASS: [1]}) is None
    assert Passes(b"other").read("kvt-1", issued) is None


def test_a_pass_says_what_is_lent() -> None:
    """Nobody else may have workers read from where they like."""
    passes, whose = Passes(b"secret"), ForReaders("key", ("a",))
    lent = Lent("h", 1, "e", "k", 8)
    issued = json.loads(json.dumps(passes.issue("kvt-1", whose, lent)))

    assert passes.read("kvt-1", issued) == (whose, lent)
    elsewhere = {**issued[PASS], "lent": {**issued[PASS]["lent"], "host": "there"}}
    assert passes.read("kvt-1", {PASS: elsewhere}) is None


PART = WorkerShare(2, 16, 2, 4, 64, "float32", 4, None, host="h")


@pytest.mark.parametrize(
    ("seat", "shares", "why"),
    [
        (Seat(tp=2), [PART, replace(PART, blocks=8)], "blocks 8 at worker 1, 16 at worker 0"),
        (Seat(tp=2), [PART, replace(PART, dtype="float16")], "dtype float16 at worker 1, float32"),
        (Seat(tp=2), [PART, replace(PART, host="g")], "host g at worker 1, h at worker 0"),
        (Seat(tp=2), [PART, replace(PART, layers=3)], "3 layers of KV at worker 1, 2 at another"),
        (Seat(tp=2), [PART], "1 workers for 1 pipeline stages of 2 tensor ranks"),
        (Seat(tp=2, kv_heads=8), [PART, PART], "2 KV heads in a worker's cache, 4 expected of 8"),
    ],
)
def test_workers_that_disagree_end_the_start_of_all(
    seat: Seat, shares: list[WorkerShare], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        taken(seat, shares)


def test_stages_may_hold_other_numbers_of_layers() -> None:
    found = taken(Seat(1, 0, 2, 1, 2), [PART, replace(PART, layers=3)])

    assert (found.layout.stages, found.layout.layers, found.first_layer) == ((2, 3), 5, 2)
