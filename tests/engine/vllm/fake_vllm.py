"""vLLM's scheduler as a connector meets it, with the asserts that end an engine.

    waiting --blocks--> loading --received--> loaded -.
       ^   '----------- running <---------------------'
       '--- received, but failed: with the policy "recompute"
       '--preempted--'     '--> finished, its blocks held until sent or received

What workers apart from the engine say is added up first: a request has been received, or sent, when all have said
so, and that it failed is held back until it has been received.

Source: vLLM 0.32.0, v1/core/sched/scheduler.py: schedule(), update_from_output(),
finish_requests(), _handle_invalid_blocks(), _update_from_kv_xfer_finished(); kv_connector/utils.py,
KVOutputAggregator.aggregate(); what comes in which order in a step is as measured on it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pdgate.engine.connector import Connector, Core, Keep, Load
from pdgate.engine.vllm.intent import LENT, PREFILL_ID
from pdgate.engine.vllm.orders import Evict, Order
from pdgate.engine.vllm.reports import Results
from pdgate.engine.vllm.scheduler_side import SchedulerSide
from pdgate.engine.vllm.worker_side import WorkerSide
from tests.engine.vllm.moody_peer import LEASE_SECONDS, MoodyPeer
from tests.engine.vllm.worker_rig import FakeCalls

BLOCK_TOKENS: Final = 4
CHUNK_TOKENS: Final = 6
LAYERS: Final = 2
PROMPT: Final = tuple(range(10))
TOTAL_BLOCKS: Final = 10


@dataclass
class Request:
    request_id: str
    kv_transfer_params: dict[str, Any] | None
    prompt_token_ids: list[int] | None = field(default_factory=lambda: list(PROMPT))
    prompt_embeds: Any = None
    mm_features: Any = ()
    lora_request: Any = None
    cache_salt: str | None = None
    num_computed_tokens: int = 0
    state: str = "waiting"
    blocks: list[int] = field(default_factory=list)
    load_failed: bool = False


Executor = Callable[[list[Results]], Results]
"""What becomes of the results of all workers in a step."""


def in_process(said: list[Results]) -> Results:
    """Of one worker, in the engine's own process: as they are."""
    (results,) = said
    return results


class AddedUp:
    """Of workers apart from the engine, however many there are."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._received: Counter[str] = Counter()
        self._sent: Counter[str] = Counter()
        self._failed: set[str] = set()

    def __call__(self, said: list[Results]) -> Results:
        for results in said:
            self._received.update(results.received)
            self._sent.update(results.sent)
            self._failed |= results.failed
        received, sent = self._by_all(self._received), self._by_all(self._sent)
        failed = frozenset(self._failed) & received
        self._failed -= failed
        return Results(sent, received, failed, frozenset().union(*(one.invalid for one in said)))

    def _by_all(self, counted: Counter[str]) -> frozenset[str]:
        found = frozenset(name for name, count in counted.items() if count == self._workers)
        for name in found:
            del counted[name]
        return found


class FakeVllm:
    def __init__(self, *, recomputes: bool = False, apart: int = 0) -> None:
        """`recomputes`: by the policy for failed loads. `apart`: so many workers in processes of their own; else
        there is one, in the engine's.
        """
        self._recomputes = recomputes
        self.now = 0.0
        self.free = set(range(TOTAL_BLOCKS))
        self.requests: dict[str, Request] = {}
        self.received: Counter[str] = Counter()
        self.started: set[str] = set()
        """All that vLLM has waited for."""
        self.lent: list[str] = []
        self._to_preempt: list[Request] = []
        self._side = SchedulerSide(BLOCK_TOKENS, recomputes=recomputes)
        self._executor: Executor = AddedUp(apart) if apart else in_process
        self.peers: list[MoodyPeer] = []
        """Of each worker."""
        self.workers = [
            WorkerSide(self._connect, FakeCalls, BLOCK_TOKENS, lambda: self.now)
            for _ in range(apart or 1)
        ]

    def _connect(self, core: Core) -> Connector:
        self.peers.append(MoodyPeer(core))
        return self.peers[-1]

    def arrive(self, params: dict[str, Any]) -> None:
        name = f"cmpl-r{len(self.requests)}-{len(self.started)}-{sum(self.received.values())}"
        while name in self.requests or name in self.started:
            name += "x"
        self.requests[name] = Request(name, params)

    def arrive_with_loan(self, tokens: int, *, is_known: bool) -> None:
        """A prefill that a decode engine has asked for, and lends some of. `is_known`: to the worker."""
        name = f"kvt-{len(self.requests)}-{len(self.started)}-{self.now}-{len(self.lent)}"
        if is_known:
            for worker, peer in zip(self.workers, self.peers, strict=True):
                peer.held(name)
                worker.submit_prefill(
                    name, PROMPT, len(PROMPT), Keep(LEASE_SECONDS), Load(tokens, None)
                )
        self.lent.append(name)
        self.arrive({"do_remote_decode": True, PREFILL_ID: name, LENT: tokens})

    def in_state(self, *states: str) -> list[Request]:
        return [request for request in self.requests.values() if request.state in states]

    def knows_that_it_fails(self, request_id: str) -> bool:
        """Its client has been told, or it is computed when its blocks are free."""
        request = self.requests[request_id]
        return request.state == "finished" or request.load_failed

    def preempt(self, request: Request) -> None:
        self._to_preempt.append(request)

    def abort(self, request: Request) -> None:
        self._finish(request, "FINISHED_ABORTED")

    def step(self) -> None:
        preempted = self._preempt()
        for request in self.in_state("waiting", "loaded"):
            self._place(request)
        ends = self._compute()
        orders = self._side.take_orders()
        if any(isinstance(order, Evict) for order in orders):
            for worker in self.workers:
                worker.evict(orders)
        for blocks in preempted:
            self._nobody_is_in(blocks)
        results = self._executor([self._work(worker, orders) for worker in self.workers])
        for request, end in ends:
            request.num_computed_tokens = end
            if end == len(PROMPT):
                self._finish(request, "FINISHED_LENGTH_CAPPED")
        self._fail(results)
        for request_id in results.received:
            self.received[request_id] += 1
            request = self.requests[request_id]
            if request.state == "loading" and request.load_failed:
                self._give_back(request)
                request.state, request.num_computed_tokens = "waiting", 0
            elif request.state == "loading":
                request.state = "loaded"
            else:
                assert request.state == "finished"
                self._free(request)
        for request_id in results.sent:
            assert self.requests[request_id].state == "finished"
            self._free(self.requests[request_id])

    def _work(self, worker: WorkerSide, orders: Sequence[Order]) -> Results:
        worker.obey(orders)
        for layer in range(LAYERS):
            worker.computed(layer)
        return worker.results()

    def _fail(self, results: Results) -> None:
        assert not results.invalid & self.free
        for request in self.in_state("loaded", "running"):
            # It would compute them again, or fail, by a fault of another's.
            assert not results.invalid & set(request.blocks)
        for request in self.in_state("loading"):
            loaded = request.blocks[: -(-request.num_computed_tokens // BLOCK_TOKENS)]
            if request.request_id in results.failed:
                request.num_computed_tokens = 0
            elif bad := [place for place, one in enumerate(loaded) if one in results.invalid]:
                request.num_computed_tokens = bad[0] * BLOCK_TOKENS
            else:
                continue
            request.load_failed = True
            if not self._recomputes:
                self._finish(request, "FINISHED_ERROR")

    def _preempt(self) -> list[list[int]]:
        left = []
        for request in self._to_preempt:
            if request.state != "running":
                continue
            self._side.preempted(request.request_id)
            left.append(request.blocks)
            self.free |= set(request.blocks)
            request.blocks, request.state, request.num_computed_tokens = [], "waiting", 0
        self._to_preempt = []
        return left

    def _place(self, request: Request) -> None:
        if request.state == "loaded":
            self._side.allocated(request, request.blocks, 0)
            request.state = "running"
            return
        external = self._side.matched(request, 0)
        needed = -(-len(PROMPT) // BLOCK_TOKENS)
        if len(self.free) < needed:
            return
        request.blocks = [self.free.pop() for _ in range(needed)]
        self._side.allocated(request, request.blocks, external)
        request.num_computed_tokens = external
        request.state = "loading" if external else "running"
        if external:
            self.started.add(request.request_id)

    def _compute(self) -> list[tuple[Request, int]]:
        ends = []
        for request in self.in_state("running"):
            end = min(request.num_computed_tokens + CHUNK_TOKENS, len(PROMPT))
            self._side.computing(request.request_id, request.blocks, end)
            ends.append((request, end))
        return ends

    def _finish(self, request: Request, status: str) -> None:
        awaited = request.state == "loading"
        request.state = "finished"
        blocks = [] if awaited else request.blocks
        ending = self._side.finished(request, status, blocks)
        if not (ending.keeps or awaited):
            self._free(request)

    def _free(self, request: Request) -> None:
        self._give_back(request)
        del self.requests[request.request_id]

    def _give_back(self, request: Request) -> None:
        self._nobody_is_in(request.blocks)
        assert not self.free & set(request.blocks)
        self.free |= set(request.blocks)
        request.blocks = []

    def _nobody_is_in(self, blocks: Sequence[int]) -> None:
        for peer in self.peers:
            peer.nobody_is_in(blocks)
