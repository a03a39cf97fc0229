"""The half that lives in vLLM's scheduler: decides, and writes orders for the worker. Pure.

    D   arrival --matched(n)--> waiting --allocated--> fetching --finished--> (cancel)
                                   '-- nothing to fetch --> settled
    P   arrival --allocated--> held --finished--> kept: blocks stay until the worker says
           '--matched(n)--> borrowing --allocated--^  '-- before any of it was computed --> forgone

vLLM calls `matched` on every step until the request has blocks, and again after a
preemption or a failed load; what was ordered once is not ordered again, the rest is
computed here.

A load that fails ends as its protocol says: with vllm-nixl as vLLM has it, a 500; with
vllm-kvt as HTTP 200 with finish_reason "abort". Where vLLM computes what does not come
(`kv_load_failure_policy` "recompute"), P borrows what D lends of a prompt: else it would
end a request that it can compute.

Source: vLLM 0.32.0, vllm/v1/core/sched/scheduler.py.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from pdgate.engine.vllm.answers import NO_FORM, Form, filled
from pdgate.engine.vllm.intent import Intent, intent, lent_tokens, speaks_nixl, wire_id
from pdgate.engine.vllm.orders import (
    AskedRequest,
    Borrow,
    CancelOrder,
    Drop,
    Evict,
    Fetch,
    Forgo,
    Hold,
    KeptBlocks,
    LetGo,
    Order,
    Progress,
    RefuseOrder,
)

FINISHED: Final[Mapping[str, str]] = {
    "FINISHED_LENGTH_CAPPED": "length",
    "FINISHED_STOPPED": "stop",
}
"""Names of vLLM's RequestStatus that leave a whole prompt behind."""
FAILED: Final = "FINISHED_ERROR"

log = logging.getLogger(__name__)


class VllmRequest(Protocol):
    """What is read of vLLM's Request."""

    request_id: str
    kv_transfer_params: dict[str, Any] | None
    prompt_token_ids: list[int] | None
    prompt_embeds: Any
    mm_features: Any
    lora_request: Any
    cache_salt: str | None
    num_computed_tokens: int


@dataclass(frozen=True, slots=True)
class EndingRequest:
    """
    Attributes:
        keeps: Its blocks stay until the worker reports them sent.
        answer: kv_transfer_params for its client.
        as_abort: It is to end as an aborted one.
    """

    keeps: bool = False
    answer: dict[str, Any] | None = None
    as_abort: bool = False


@dataclass(slots=True)
class _Live:
    """
    Attributes:
        tokens: What may come from a peer; the last prompt token is always computed here.
        cached_tokens: Of the prompt, which were in a cache here.
        loading: vLLM waits for the end of its load.
        begun: A step has computed some of it since it has its blocks.
    """

    asked: AskedRequest
    intent: Intent
    tokens: int
    cached_tokens: int = 0
    ordered: bool = False
    loading: bool = False
    begun: bool = False

    @property
    def fetches(self) -> bool:
        return self.intent in (Intent.FETCH, Intent.DELEGATE)


class SchedulerSide:
    def __init__(self, block_tokens: int, *, recomputes: bool = False) -> None:
        """`recomputes`: vLLM computes what does not come of a load."""
        self._block_tokens = block_tokens
        self._recomputes = recomputes
        self._live: dict[str, _Live] = {}
        self._orders: list[Order] = []
        self._holds = 0
        self._form = NO_FORM

    def answers_with(self, form: Form) -> None:
        """Answer with the form in which blocks of this engine are read (answers.py)."""
        self._form = form

    def matched(self, request: VllmRequest, computed_tokens: int) -> int:
        """How many tokens beyond `computed_tokens` a peer has; 0 for none, or no longer."""
        live = self._of(request)
        if live is None or live.ordered:
            return 0
        live.cached_tokens = computed_tokens
        return max(0, live.tokens - computed_tokens)

    def allocated(
        self, request: VllmRequest, block_ids: Sequence[int], external_tokens: int
    ) -> None:
        """Note the blocks of a request; `external_tokens` have to come from a peer."""
        live = self._of(request)
        if live is None:
            return
        if live.ordered:
            live.loading = False
            return
        live.ordered = True
        if not live.fetches:
            self._holds += 1
            self._orders.append(Hold(live.asked))
        if external_tokens > 0:
            needed = block_ids[: -(-live.tokens // self._block_tokens)]
            there = live.tokens - external_tokens
            live.loading = True
            fill = Fetch if live.fetches else Borrow
            self._orders.append(fill(live.asked, tuple(needed), live.tokens, there))
        elif live.fetches:
            self._orders.append(LetGo(live.asked))

    @property
    def holding(self) -> bool:
        """Whether `computing` and `preempted` have anything to say."""
        return self._holds > 0

    def computing(self, request_id: str, block_ids: Sequence[int], tokens: int) -> None:
        """This step computes up to `tokens` of a request, in these blocks."""
        live = self._live.get(request_id)
        if live is not None and live.ordered and live.intent is Intent.HOLD:
            live.begun = True
            tokens = min(tokens, len(live.asked.prompt))
            needed = block_ids[: -(-tokens // self._block_tokens)]
            self._orders.append(Progress(request_id, tuple(needed), tokens))

    def preempted(self, request_id: str) -> None:
        """Its blocks are used by others from this step on."""
        live = self._live.get(request_id)
        if live is not None and live.ordered and live.intent is Intent.HOLD:
            live.begun = False
            self._orders.append(Evict(request_id))

    def load_failed(self, request_ids: Iterable[str]) -> None:
        """Cancel loads that failed at one worker; the others need not go on, and vLLM waits for all."""
        for request_id in request_ids:
            live = self._live.get(request_id)
            if live is not None and live.loading:
                self._orders.append(CancelOrder(request_id))

    def refuse(self, request_id: str, why: str) -> None:
        """Fail what was promised to vLLM for this request, after a bug."""
        self._orders.append(RefuseOrder(request_id, why))

    def finished(
        self, request: VllmRequest, status: str, block_ids: Sequence[int]
    ) -> EndingRequest:
        live = self._live.pop(request.request_id, None)
        if live is None:
            return EndingRequest()
        if live.intent is Intent.HOLD:
            if not live.ordered:
                return EndingRequest()
            self._holds -= 1
            if not live.begun:
                # Of a load, ours or another connector's beside us, vLLM waits for the end by itself, and dies of a second
                # word that the blocks are free.
                if live.loading:
                    self._orders.append(CancelOrder(live.asked.id))
                self._orders.append(Forgo(live.asked.id, f"the prefill ended as {status}"))
                return EndingRequest()
            return EndingRequest(True, self._keep(live, request, status, block_ids))
        if not live.ordered:
            self._orders.append(LetGo(live.asked))
        elif status not in FINISHED:
            # Of no effect if the load is over; if not, vLLM waits for its report.
            self._orders.append(CancelOrder(live.asked.id))
        failed_load = live.loading and status == FAILED
        return EndingRequest(as_abort=failed_load and not speaks_nixl(live.asked.params))

    def take_orders(self) -> tuple[Order, ...]:
        orders, self._orders = tuple(self._orders), []
        return orders

    def _keep(
        self, live: _Live, request: VllmRequest, status: str, block_ids: Sequence[int]
    ) -> dict[str, Any] | None:
        """The answer."""
        asked = live.asked
        tokens = min(len(asked.prompt), request.num_computed_tokens)
        if status not in FINISHED or tokens == 0:
            self._orders.append(Drop(asked.id, f"the prefill ended as {status}"))
            return None
        needed = block_ids[: -(-tokens // self._block_tokens)]
        self._orders.append(KeptBlocks(asked.id, tuple(needed), tokens, FINISHED[status]))
        if not speaks_nixl(asked.params):
            return None
        return filled(self._form, asked.id, needed, tokens, live.cached_tokens)

    def _of(self, request: VllmRequest) -> _Live | None:
        found = self._live.get(request.request_id)
        if found is None and request.kv_transfer_params:
            found = self._read(request)
            if found is not None:
                self._live[request.request_id] = found
        return found

    def _read(self, request: VllmRequest) -> _Live | None:
        params = request.kv_transfer_params
        wanted = intent(params)
        if wanted is Intent.NOTHING or not isinstance(params, Mapping):
            return None
        if request.prompt_token_ids is None:
            return None
        if wanted is Intent.DELEGATE and (what := _more_than_tokens(request)):
            # The peer is sent token ids only, and would compute something else.
            log.info("%s is computed here: it has %s", request.request_id, what)
            return None
        prompt = tuple(request.prompt_token_ids)
        tokens = len(prompt) - 1
        if wanted is Intent.HOLD:
            tokens = lent_tokens(params, len(prompt)) if self._recomputes else 0
        asked = AskedRequest(request.request_id, wire_id(request.request_id), prompt, params)
        return _Live(asked, wanted, tokens)


def _more_than_tokens(request: VllmRequest) -> str:
    """What else its KV depends on; empty if nothing."""
    extras = {
        "prompt embeddings": request.prompt_embeds is not None,
        "images or sounds": bool(request.mm_features),
        "a LoRA adapter": request.lora_request is not None,
        "a cache salt": bool(request.cache_salt),
    }
    return ", ".join(name for name, there in extras.items() if there)
