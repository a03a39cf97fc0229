"""Two worker halves with the real hand-over between them, over memory of their own.

The test is vLLM: it gives the orders of each step and calls the hook of each layer.
"""

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

from pdgate.engine.connector import Connector, Core
from pdgate.engine.hand_over.settings import ConnectorSettings
from pdgate.engine.layout import Layout
from pdgate.engine.vllm.dialects import DialectMode, Dialects, QueuedDialects
from pdgate.engine.vllm.intent import PREFILL_ID
from pdgate.engine.vllm.orders import AskedRequest, Fetch, Hold, KeptBlocks
from pdgate.engine.vllm.prefill_call import NOTHING, Failed, PromptCalls
from pdgate.engine.vllm.reports import Results
from pdgate.engine.vllm.step_end import Steps
from pdgate.engine.vllm.worker_side import WorkerSide
from pdgate.transfer import registry
from tests.support import waiting

SECONDS = waiting.PATIENCE_SECONDS
LAYOUT = Layout(layers=3, blocks=16, kv_heads=2, block_tokens=4, head_dim=8)
PROMPT = tuple(range(100, 110))
TOKENS = len(PROMPT) - 1
P_BLOCKS, D_BLOCKS = (9, 2, 5), (4, 11, 7)


class Engine(WorkerSide, PromptCalls):
    """A worker and its KV memory; it also takes the calls that its hand-over makes to its API."""

    def __init__(
        self,
        backend: str,
        role: str,
        stack: ExitStack,
        mode: DialectMode = DialectMode.LAYERWISE,
        layout: Layout = LAYOUT,
        queue: str = "",
        *,
        borrows: bool = True,
    ) -> None:
        """`borrows`: vLLM computes what does not come of a load."""
        self.memory = bytearray(layout.total_bytes)
        self.loads: dict[str, threading.Event] = {}
        self.prefills: list[str] = []
        self.params: list[Mapping[str, Any]] = []
        self.asked_for = threading.Event()
        self.freed = threading.Event()
        transfer = stack.enter_context(closing(registry.load(backend)))
        region = transfer.register(memoryview(self.memory))
        steps = Steps()

        def connect(core: Core) -> Connector:
            settings = ConnectorSettings(
                role,
                "127.0.0.1",
                0,
                "127.0.0.1",
                0,
                SECONDS,
                "tiny",
                queue=queue,
                borrows=borrows,
                step_end=steps.end,
            )
            self.hand_over = (QueuedDialects if queue else Dialects)(
                mode=mode,
                core=core,
                layout=layout,
                regions=[region],
                backend=transfer,
                settings=settings,
            )
            return self.hand_over

        super().__init__(connect, self._its_own_api, layout.block_tokens, steps=steps)
        stack.callback(self.close)

    def _its_own_api(self, failed: Failed) -> PromptCalls:
        return self

    def start(
        self, prefill_id: str, prompt: Sequence[int], params: Mapping[str, Any] = NOTHING
    ) -> None:
        self.prefills.append(prefill_id)
        self.params.append(params)
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

    def fetch(self, params: dict[str, Any], wire_id: str = "r", skip: int = 0) -> None:
        self.loads["d1"] = threading.Event()
        self.obey([Fetch(AskedRequest("d1", wire_id, PROMPT, params), D_BLOCKS, TOKENS, skip)])

    def outcome(self, of: str = "d1") -> Results:
        assert self.loads[of].wait(SECONDS)
        return self.results()


class Pair:
    def __init__(
        self,
        backend: str,
        stack: ExitStack,
        modes: tuple[DialectMode, DialectMode] = (DialectMode.LAYERWISE, DialectMode.LAYERWISE),
        d_layout: Layout = LAYOUT,
        queue: str = "",
        *,
        borrows: bool = True,
    ) -> None:
        """`modes`: prefill's and decode's. `queue`: decode's. `borrows`: prefill does."""
        self.p = Engine(backend, "prefill", stack, modes[0], borrows=borrows)
        self.d = Engine(backend, "decode", stack, modes[1], d_layout, queue)

    @property
    def at_p(self) -> dict[str, Any]:
        host, port = self.p.connector.kv_address
        return {"remote_host": host, "remote_port": port}

    def delegated(self) -> Hold:
        """D has asked, and P's request for it has come in."""
        self.d.fetch(self.at_p)
        return self.asked()

    def asked(self) -> Hold:
        """P's request for what D has somehow asked of it has come in."""
        return asked_of(self.p)

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


def asked_of(p: Engine) -> Hold:
    """As `Pair.asked`, whoever has asked."""
    assert p.asked_for.wait(SECONDS)
    params = {"do_remote_decode": True, PREFILL_ID: p.prefills[0], **p.params[0]}
    return Hold(AskedRequest("p1", "r", PROMPT[:TOKENS], params))


def content(layer: int, place: int) -> bytes:
    return bytes([1 + 10 * layer + place]) * LAYOUT.page_bytes


def kept(tokens: int = TOKENS) -> KeptBlocks:
    return KeptBlocks("p1", P_BLOCKS, tokens, "length")
