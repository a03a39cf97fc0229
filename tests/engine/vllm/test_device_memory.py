"""vLLM workers whose KV cache is a device's: nothing is there before its event, in either direction.

The device is the fake one, which does nothing until it is waited for, so a missing event shows as bytes
of before.
"""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest

from pdgate.cluster.queue import settings as queue_settings
from pdgate.cluster.queue.opening import open_queue
from pdgate.engine.prefill_worker.worker import PrefillWorker, Serving
from pdgate.engine.vllm import running, settings
from pdgate.engine.vllm.census import Seat
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
from pdgate.engine.vllm.prefill_call import Failed, PromptCalls
from pdgate.engine.vllm.reports import Results
from pdgate.engine.vllm.running import RunningWorker
from pdgate.transfer.runtime.fleet import Identity
from tests.engine.vllm.tensors import Tensor
from tests.engine.vllm.test_many_workers import SECONDS, Api
from tests.support import waiting
from tests.transfer.device.nodes import new_device

LAYERS, BLOCKS, HEADS, SIZE, ROW = 2, 12, 2, 4, 8
PAGE = HEADS * SIZE * ROW * 4
PROMPT = tuple(range(11))
TOKENS = 10
P_BLOCKS, D_BLOCKS = (9, 2, 5), (4, 11, 7)
EARLIER_WORK = 300
"""Things that the stream has to do before what is waited for: so it never is there by chance."""


class Worker:
    def __init__(
        self, number: int, role: str, transfer: str, mode: str, stack: ExitStack, queue: str = ""
    ) -> None:
        self.device = new_device(number)
        self.memory = self.device.allocate(LAYERS * BLOCKS * PAGE)
        self.stream = self.device.stream()
        self.records = True
        tensors = {
            f"layers.{layer}": Tensor(
                self.memory.address + layer * BLOCKS * PAGE,
                (BLOCKS, HEADS, SIZE, ROW),
                storage=self.memory.address,
            )
            for layer in range(LAYERS)
        }
        extra = {"transfer": transfer, "mode": mode, "queue": queue}
        read = settings.read(role, 0, extra, "tiny", recomputes=True)
        self.running = stack.enter_context(
            closing(
                RunningWorker.start(
                    read,
                    "m",
                    tensors,
                    [],
                    "",
                    _no_rebase,
                    Seat(),
                    lambda mine: [mine],
                    self.device.name,
                    lambda: self.stream.record() if self.records else None,
                )
            )
        )
        self.side = self.running.worker

    def launch(self, layer: int, block: int, content: bytes) -> None:
        """What a kernel writes, when the stream comes to it."""
        at = self.memory.address + (layer * BLOCKS + block) * PAGE
        self.device.to_device(self.stream, at, memoryview(bytearray(content)))

    def pages(self) -> dict[tuple[int, int], bytes]:
        """As the device has them at this moment, and without making anything happen."""
        now = bytes(self.device.now(self.memory))
        return {
            (layer, block): now[(layer * BLOCKS + block) * PAGE :][:PAGE]
            for layer in range(LAYERS)
            for block in range(BLOCKS)
        }


def _no_rebase(tensors: object, to: memoryview) -> None:
    raise AssertionError("a device's memory stays where it is")


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
def pair(transfer: str, mode: str, queue: str = "") -> Iterator[tuple[Worker, Worker]]:
    with ExitStack() as stack:
        prefill = Worker(0, "kv_producer", transfer, mode, stack)
        yield prefill, Worker(1, "kv_consumer", transfer, mode, stack, queue)


def content(layer: int, place: int) -> bytes:
    return bytes([1 + 10 * layer + place]) * PAGE


def computed(prefill: Worker, *, with_events: bool) -> None:
    """A step, as vLLM runs it: kernels are launched, the hook of the layer is called, and so on."""
    prefill.records = with_events
    prefill.side.obey([Progress("p1", P_BLOCKS, TOKENS)])
    for layer in range(LAYERS):
        for place, block in enumerate(P_BLOCKS):
            prefill.launch(layer, block, content(layer, place))
        prefill.side.computed(layer)


def asked(prefill: Worker, decode: Worker, api: Api) -> None:
    host, port = prefill.side.connector.kv_address
    at: dict[str, Any] = {"remote_host": host, "remote_port": port}
    decode.side.obey([Fetch(AskedRequest("d1", "r", PROMPT, at), D_BLOCKS, TOKENS, 0)])
    assert api.came.wait(SECONDS)
    hold = {"do_remote_decode": True, PREFILL_ID: api.asked[0][PREFILL_ID]}
    prefill.side.obey([Hold(AskedRequest("p1", "r", PROMPT[:TOKENS], hold))])


def received(decode: Worker) -> dict[tuple[int, int], bytes]:
    """D's pages at the moment that vLLM hears that they are there."""
    results = waiting.wait_until(lambda: decode.side.results().received, "the load's end")
    assert results == {"d1"}
    return decode.pages()


def whole(pages: dict[tuple[int, int], bytes]) -> bool:
    return all(
        pages[layer, block] == content(layer, place)
        for layer in range(LAYERS)
        for place, block in enumerate(D_BLOCKS)
    )


@pytest.mark.parametrize("transfer", ["tcp", "shm"])
def test_layers_arrive_when_their_events_have_happened(transfer: str, api: Api) -> None:
    with pair(transfer, "layerwise") as (prefill, decode):
        asked(prefill, decode, api)
        computed(prefill, with_events=True)

        assert whole(received(decode))


def test_without_events_what_arrives_is_of_before(api: Api) -> None:
    """So the test above would see a hook that records none."""
    with pair("tcp", "layerwise") as (prefill, decode):
        asked(prefill, decode, api)
        computed(prefill, with_events=False)

        assert not whole(received(decode))


def test_what_the_device_still_does_to_decodes_pages_comes_first(api: Api) -> None:
    """Their last owner's step is in the queue when the load is ordered."""
    with pair("tcp", "pull") as (prefill, decode):
        for _ in range(EARLIER_WORK):
            decode.launch(1, 0, bytes(PAGE))
        for block in D_BLOCKS:
            decode.launch(0, block, bytes(PAGE))
        asked(prefill, decode, api)
        computed(prefill, with_events=True)
        # vLLM ends a request when its last step has been waited for.
        prefill.stream.synchronize()
        prefill.side.obey([KeptBlocks("p1", P_BLOCKS, TOKENS, "length")])

        arrived = received(decode)
        decode.stream.synchronize()

        assert whole(arrived)
        assert whole(decode.pages())


@pytest.mark.parametrize("transfer", ["tcp", "shm"])
def test_what_is_lent_is_read_behind_the_step_that_computes_it(transfer: str, api: Api) -> None:
    """It was in decode's prefix cache before decode's device had even been asked for it."""
    queue = f"memory://{uuid.uuid4().hex}"
    with pair(transfer, "layerwise", queue) as (prefill, decode), ExitStack() as stack:
        order = AskedRequest("d1", "r", PROMPT, {"do_queued_prefill": True})
        decode.side.obey([Fetch(order, D_BLOCKS, TOKENS, 2 * SIZE)])
        host, port = prefill.side.connector.kv_address
        opened = open_queue(queue_settings.read(queue), "m")
        beside = PrefillWorker(opened, Serving("w", host, port, SECONDS), Identity())
        beside.start()
        stack.callback(beside.wait, SECONDS)
        stack.callback(beside.cut)
        assert api.came.wait(SECONDS)
        assert api.asked[0][LENT] == 2 * SIZE
        hold = AskedRequest("p1", "r", PROMPT[:TOKENS], api.asked[0])
        prefill.side.obey([Hold(hold), Borrow(hold, P_BLOCKS[:2], 2 * SIZE, 0)])
        for layer in range(LAYERS):
            for place, block in enumerate(D_BLOCKS[:2]):
                decode.launch(layer, block, content(layer, place))

        decode.side.results()

        said: list[Results] = []

        def over() -> bool:
            said.append(prefill.side.results())
            return bool(said[-1].received)

        waiting.wait_until(over, "the loan's end")
        assert said[-1].failed == frozenset()
        prefill.stream.synchronize()
        pages = prefill.pages()
        assert all(
            pages[layer, block] == content(layer, place)
            for layer in range(LAYERS)
            for place, block in enumerate(P_BLOCKS[:2])
        )
        decode.side.obey([CancelOrder("d1")])
        waiting.wait_until(lambda: decode.side.results().received, "the end")
