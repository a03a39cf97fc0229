"""A worker's half with a connector that only writes down, and a clock that the test sets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pdgate.engine.connector import Arrival, Connector, Core, Keep, Load, Pages
from pdgate.engine.vllm.orders import (
    AskedRequest,
    Fetch,
    KeptBlocks,
    Order,
)
from pdgate.engine.vllm.prefill_call import NOTHING, PromptCalls
from pdgate.engine.vllm.reports import Results
from pdgate.engine.vllm.worker_side import WorkerSide
from pdgate.transfer.messenger.counters import MessengerCounters

LEASE_SECONDS = 10.0
BLOCK_TOKENS = 4
BLOCKS = (5, 6, 7)


class WritesDown(Connector):
    def __init__(self, core: Core) -> None:
        self.core = core
        self.counters = MessengerCounters()
        self.kv_address = ("h", 1)
        self.said: list[tuple[Any, ...]] = []
        self.plans: dict[str, Load | Keep | Exception | None] = {}
        self.breaks_at = ""
        self.in_use = False

    def plan(self, arrival: Arrival) -> Load | Keep | None:
        plan = self.plans.get(arrival.id)
        if isinstance(plan, Exception):
            raise plan
        return plan

    def start(self, request_id: str, load: Load, pages: Pages, skip_tokens: int) -> None:
        self._say("start", request_id, tuple(pages.block_ids), skip_tokens)

    def cancel(self, request_id: str) -> None:
        self._say("cancel", request_id)

    def kept(
        self,
        request_id: str,
        keep: Keep,
        pages: Pages,
        first_token: int | None,
        finish_reason: str,
    ) -> Mapping[str, Any] | None:
        self._say("kept", request_id, tuple(pages.block_ids), pages.tokens, finish_reason)
        return None

    def layer_computed(
        self, request_id: str, layer: int, block_ids: Sequence[int], tokens: int
    ) -> None:
        self._say("computed", request_id, layer, tuple(block_ids), tokens)

    def dropped(self, request_id: str, why: str) -> bool:
        self._say("dropped", request_id)
        return self.in_use

    def break_off(self, request_id: str) -> None:
        self._say("break off", request_id)

    def close(self) -> None:
        self._say("close")

    def _say(self, verb: str, *rest: Any) -> None:
        self.said.append((verb, *rest))
        if verb == self.breaks_at:
            raise RuntimeError("a bug")


@dataclass
class FakeCalls(PromptCalls):
    failed: Callable[[str, str], None]
    started: list[tuple[str, Sequence[int]]] = field(default_factory=list)
    params: list[Mapping[str, Any]] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    refuses: bool = False

    def start(
        self, prefill_id: str, prompt: Sequence[int], params: Mapping[str, Any] = NOTHING
    ) -> None:
        if self.refuses:
            raise ValueError("no API")
        self.started.append((prefill_id, prompt))
        self.params.append(params)

    def cancel(self, prefill_id: str) -> None:
        self.cancelled.append(prefill_id)


class Rig:
    def __init__(self) -> None:
        self.now = 0.0

        def calls(failed: Callable[[str, str], None]) -> PromptCalls:
            self.calls = FakeCalls(failed)
            return self.calls

        self.worker = WorkerSide(self._connect, calls, BLOCK_TOKENS, lambda: self.now)

    def _connect(self, core: Core) -> Connector:
        self.connector = WritesDown(core)
        return self.connector

    def obey(self, *orders: Order) -> None:
        self.worker.obey(orders)

    def results(self) -> Results:
        return self.worker.results()

    def plan(self, request_id: str, plan: Load | Keep | Exception | None) -> None:
        self.connector.plans[request_id] = plan

    def said(self, verb: str) -> list[tuple[Any, ...]]:
        return [one[1:] for one in self.connector.said if one[0] == verb]


def asked(request_id: str, **params: Any) -> AskedRequest:
    return AskedRequest(request_id, "r", tuple(range(10)), params)


def fetch(request_id: str = "d1", tokens: int = 9, skip: int = 0) -> Fetch:
    return Fetch(asked(request_id), BLOCKS, tokens, skip)


def kept(request_id: str = "p1") -> KeptBlocks:
    return KeptBlocks(request_id, BLOCKS, 10, "length")
