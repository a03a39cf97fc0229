"""Both worker halves with the real hand-over between them, over memory of their own.

The test is vLLM: it gives the orders of each step and calls the hook of each layer.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any

import pytest

from pdgate.engine.connector import Connector, Core
from pdgate.engine.hand_over.kvt import Kvt
from pdgate.engine.hand_over.settings import ConnectorSettings
from pdgate.engine.layout import Layout
from pdgate.engine.vllm.intent import PREFILL_ID
from pdgate.engine.vllm.orders import Asked, Cancel, Drop, Evict, Fetch, Hold, Kept, Progress
from pdgate.engine.vllm.prefill_call import Calls, Failed
from pdgate.engine.vllm.reports import Results
from pdgate.engine.vllm.worker_side import WorkerSide
from pdgate.transfer import registry

SECONDS = 10.0
LAYOUT = Layout(layers=3, blocks=16, kv_heads=2, block_tokens=4, head_dim=8)
PROMPT = tuple(range(100, 110))
TOKENS = len(PROMPT) - 1
P_BLOCKS, D_BLOCKS = (9, 2, 5), (4, 11, 7)


class Engine(WorkerSide, Calls):
    """A worker and its KV memory; it also takes the calls that its hand-over makes to its API."""

    def __init__(self, backend: str, role: str, stack: ExitStack, layout: Layout = LAYOUT) -> None:
        self.memory = bytearray(layout.total_bytes)
        self.loads: dict[str, threading.Event] = {}
        self.prefills: list[str] = []
        self.asked_for = threading.Event()
        self.freed = threading.Event()
        transfer = stack.enter_context(closing(registry.load(backend)))
        region = transfer.register(memoryview(self.memory))

        def connect(core: Core) -> Connector:
            settings = ConnectorSettings(role, "127.0.0.1", 0, "127.0.0.1", 0, SECONDS, "tiny")
            return Kvt(
                core=core, layout=layout, regions=[region], backend=transfer, settings=settings
            )

        super().__init__(connect, self._its_own_api)
        stack.callback(self.close)

    def _its_own_api(self, failed: Failed) -> Calls:
        return self

    def start(self, prefill_id: str, prompt: Sequence[int]) -> None:
        self.prefills.append(prefill_id)
        self.asked_for.set()

    def cancel(self, prefill_id: str) -> None:
        """vLLM would abort the request; the test does."""

    def loaded(self, request_id: str, error: str | None = None) -> None:
        super().loaded(request_id, error)
        self.loads[request_id].set()

    def release(self, request_id: str) -> None:
        super().release(request_id)
        self.freed.set()

    def page(self, layer: int, block_id: int) -> memoryview:
        start = LAYOUT.page_offset(layer, block_id)
        return memoryview(self.memory)[start : start + LAYOUT.page_bytes]

    def fetch(self, params: dict[str, Any], wire_id: str = "r") -> None:
        self.loads["d1"] = threading.Event()
        self.obey([Fetch(Asked("d1", wire_id, PROMPT, params), D_BLOCKS, TOKENS, 0)])

    def outcome(self) -> Results:
        assert self.loads["d1"].wait(SECONDS)
        return self.results()


class Pair:
    def __init__(self, backend: str, stack: ExitStack, d_layout: Layout = LAYOUT) -> None:
        self.p = Engine(backend, "prefill", stack)
        self.d = Engine(backend, "decode", stack, d_layout)

    @property
    def at_p(self) -> dict[str, Any]:
        host, port = self.p.connector.kv_address
        return {"remote_host": host, "remote_port": port}

    def delegated(self) -> Hold:
        """D has asked, and P's request for it has come in."""
        self.d.fetch(self.at_p)
        assert self.p.asked_for.wait(SECONDS)
        params = {"do_remote_decode": True, PREFILL_ID: self.p.prefills[0]}
        return Hold(Asked("p1", "r", PROMPT[:TOKENS], params))

    def compute(self, layer: int) -> None:
        for place, block_id in enumerate(P_BLOCKS):
            self.p.page(layer, block_id)[:] = content(layer, place)
        self.p.computed(layer)

    def same(self) -> bool:
        return all(
            self.d.page(layer, block_id) == content(layer, place)
            for layer in range(LAYOUT.layers)
            for place, block_id in enumerate(D_BLOCKS)
        )


def content(layer: int, place: int) -> bytes:
    return bytes([1 + 10 * layer + place]) * LAYOUT.page_bytes


@pytest.fixture(params=["shm", "tcp"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(request.param, stack)


def kept(tokens: int = TOKENS) -> Kept:
    return Kept("p1", P_BLOCKS, tokens, "length")


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
    pair.p.obey([Hold(Asked("p1", "r", PROMPT, {"do_remote_decode": True}))])
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


def test_a_cancelled_load_ends_on_both_sides(pair: Pair) -> None:
    hold = pair.delegated()
    pair.p.obey([hold])

    pair.d.obey([Cancel("d1")])

    assert pair.d.outcome().received == {"d1"}
    pair.p.obey([kept()])
    assert pair.p.freed.wait(SECONDS)
    assert pair.p.results().sent == {"p1"}


def test_another_layout_is_refused_with_both_sides_numbers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = Layout(layers=3, blocks=16, kv_heads=2, block_tokens=4, head_dim=16)
    caplog.set_level("INFO")
    with ExitStack() as stack:
        pair = Pair("tcp", stack, other)
        pair.p.obey([Hold(Asked("p1", "r", PROMPT, {"do_remote_decode": True})), kept(10)])

        pair.d.fetch({"do_remote_prefill": True, **pair.at_p})

        assert pair.d.outcome().failed == {"d1"}
    assert "head_dim" in caplog.text
    assert "16" in caplog.text
