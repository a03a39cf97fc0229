"""Engine cores on the built-in model, driven from a test without HTTP."""

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache

from pdgate.engine.cache.memory import KvMemory
from pdgate.engine.core import EngineCore
from pdgate.engine.layout import Layout
from pdgate.engine.model.load import LoadedModel, load
from pdgate.engine.request import Output, Request, Sampling
from pdgate.engine.work import Options
from tests.support.waiting import PATIENCE_SECONDS

GREEDY = Sampling(max_tokens=24, temperature=0, ignore_eos=True)


@lru_cache
def tiny() -> LoadedModel:
    return load(None, 2048)


def layout(blocks: int = 128, block_tokens: int = 16, tp: int = 1) -> Layout:
    config = tiny().config
    return Layout(config.layers, blocks, config.kv_heads, block_tokens, config.head_dim, tp=tp)


def ask(request_id: str, prompt: str, sampling: Sampling = GREEDY, **more: object) -> Request:
    ids = tuple(tiny().tokenizer.encode(prompt))
    request = Request(request_id, request_id, ids, sampling)
    return replace(request, **more)  # type: ignore[arg-type]


@dataclass
class Engine:
    """A core and its outputs, in the order in which they came."""

    memory: memoryview
    core: EngineCore = field(init=False)
    outputs: "queue.SimpleQueue[Output]" = field(default_factory=queue.SimpleQueue)

    def deliver(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            self.outputs.put(output)

    @contextmanager
    def resting(self) -> Iterator[None]:
        """The core does nothing meanwhile, so that what it is told is all there when it goes on."""
        reached, go_on = threading.Event(), threading.Event()

        def rest() -> None:
            reached.set()
            assert go_on.wait(PATIENCE_SECONDS)

        assert self.core._post(rest)
        assert reached.wait(PATIENCE_SECONDS)
        try:
            yield
        finally:
            go_on.set()

    def next(self) -> Output:
        return self.outputs.get(timeout=PATIENCE_SECONDS)

    def answers(self, *request_ids: str) -> dict[str, list[Output]]:
        """Waits for the ends of these requests; others' outputs are lost."""
        found: dict[str, list[Output]] = {request_id: [] for request_id in request_ids}
        open_ids = set(request_ids)
        while open_ids:
            output = self.next()
            if output.request_id in found:
                found[output.request_id].append(output)
                if output.last:
                    open_ids.remove(output.request_id)
        return found

    def answer(self, request: Request) -> list[Output]:
        self.core.submit(request)
        return self.answers(request.id)[request.id]

    def tokens(self, request: Request) -> list[int]:
        return tokens_of(self.answer(request))


def tokens_of(outputs: Sequence[Output]) -> list[int]:
    return [token for output in outputs for token in output.tokens]


def engine(options: Options | None = None, blocks: int = 128, block_tokens: int = 16) -> Engine:
    """Not started yet, so that a test can connect it first."""
    where = layout(blocks, block_tokens)
    made = Engine(memoryview(bytearray(where.total_bytes)))
    made.core = EngineCore(tiny(), where, KvMemory(where, [made.memory]), made.deliver, options)
    return made
