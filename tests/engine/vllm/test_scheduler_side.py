"""What the scheduler's half decides, on requests as vLLM 0.32.0 has them."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from pdgate.engine.vllm.orders import (
    AskedRequest,
    CancelOrder,
    Drop,
    Evict,
    Fetch,
    Forgo,
    Hold,
    KeptBlocks,
    LetGo,
    Progress,
    RefuseOrder,
)
from pdgate.engine.vllm.scheduler_side import EndingRequest, SchedulerSide

BLOCK = 4
HOLD = {"do_remote_decode": True}
FETCH = {"remote_host": "h", "remote_port": 1, "do_remote_prefill": True}
DELEGATE = {"remote_host": "h", "remote_port": 1}
ASK = {"do_remote_decode": True, "do_remote_prefill": False}
ANSWER = {"do_remote_decode": False, "do_remote_prefill": True, "remote_request_id": "p1"}
CAPPED, ABORTED, FAILED = "FINISHED_LENGTH_CAPPED", "FINISHED_ABORTED", "FINISHED_ERROR"


@dataclass
class Request:
    request_id: str = "cmpl-r-0-00000000"
    kv_transfer_params: dict[str, Any] | None = None
    prompt_token_ids: list[int] | None = field(default_factory=lambda: list(range(10)))
    prompt_embeds: Any = None
    mm_features: Any = ()
    lora_request: Any = None
    cache_salt: str | None = None
    num_computed_tokens: int = 0

    @property
    def asked(self) -> AskedRequest:
        assert self.prompt_token_ids is not None
        assert self.kv_transfer_params is not None
        return AskedRequest(
            self.request_id, "r", tuple(self.prompt_token_ids), self.kv_transfer_params
        )


@pytest.fixture
def side() -> SchedulerSide:
    return SchedulerSide(BLOCK)


def held(side: SchedulerSide, request: Request, computed_tokens: int) -> None:
    """Its blocks are allocated, and a step has computed so much of it."""
    side.allocated(request, [3, 4, 5], 0)
    side.computing(request.request_id, [3, 4, 5], computed_tokens)
    request.num_computed_tokens = computed_tokens
    assert [type(order) for order in side.take_orders()] == [Hold, Progress]


@pytest.mark.parametrize("params", [FETCH, DELEGATE])
def test_all_but_the_last_token_come_from_the_peer(
    params: dict[str, Any], side: SchedulerSide
) -> None:
    request = Request(kv_transfer_params=params)

    assert side.matched(request, 0) == 9
    assert side.matched(request, 8) == 1

    side.allocated(request, [5, 6, 7], 9)
    assert side.take_orders() == (Fetch(request.asked, (5, 6, 7), 9, 0),)


def test_blocks_that_are_cached_here_are_not_fetched(side: SchedulerSide) -> None:
    request = Request(kv_transfer_params=FETCH)

    assert side.matched(request, BLOCK) == 5
    side.allocated(request, [5, 6, 7], 5)

    assert side.take_orders() == (Fetch(request.asked, (5, 6, 7), 9, BLOCK),)


def test_a_block_that_only_the_last_token_needs_is_not_fetched(side: SchedulerSide) -> None:
    request = Request(kv_transfer_params=FETCH, prompt_token_ids=list(range(9)))

    side.allocated(request, [5, 6, 7], side.matched(request, 0))

    assert side.take_orders() == (Fetch(request.asked, (5, 6), 8, 0),)


def test_asking_again_changes_nothing(side: SchedulerSide) -> None:
    """vLLM asks on every step until there is room."""
    request = Request(kv_transfer_params=FETCH)

    assert [side.matched(request, 0) for _ in range(5)] == [9] * 5
    assert side.take_orders() == ()


def test_what_was_fetched_once_is_computed_after_a_preemption(side: SchedulerSide) -> None:
    request = Request(kv_transfer_params=FETCH)
    side.allocated(request, [5, 6, 7], 9)
    # vLLM says that the load is over.
    side.allocated(request, [5, 6, 7], 0)

    assert side.matched(request, 0) == 0
    side.allocated(request, [1, 2, 3], 0)
    assert len(side.take_orders()) == 1


@pytest.mark.parametrize("prompt", [[1], list(range(9))])
def test_a_peer_is_told_when_nothing_of_its_pages_is_needed(
    prompt: list[int], side: SchedulerSide
) -> None:
    """A single token, or a prompt that is cached here but for its last token."""
    request = Request(kv_transfer_params=FETCH, prompt_token_ids=prompt)

    assert side.matched(request, 8) == 0
    side.allocated(request, [5], 0)

    assert side.take_orders() == (LetGo(request.asked),)


def test_a_peer_is_told_when_the_client_left_the_queue(side: SchedulerSide) -> None:
    request = Request(kv_transfer_params=FETCH)
    side.matched(request, 0)

    assert side.finished(request, ABORTED, []) == EndingRequest()

    assert side.take_orders() == (LetGo(request.asked),)


def test_a_load_is_cancelled_when_its_client_leaves(side: SchedulerSide) -> None:
    request = Request(kv_transfer_params=FETCH)
    side.allocated(request, [5, 6, 7], 9)
    side.take_orders()

    assert side.finished(request, ABORTED, []) == EndingRequest()

    assert side.take_orders() == (CancelOrder(request.request_id),)


def test_an_answered_request_leaves_nothing_behind(side: SchedulerSide) -> None:
    request = Request(kv_transfer_params=FETCH)
    side.allocated(request, [5, 6, 7], 9)
    side.take_orders()

    assert side.finished(request, CAPPED, [5, 6, 7]) == EndingRequest()

    assert side.take_orders() == ()
    assert side._live == {}


@pytest.mark.parametrize(("status", "why"), [(CAPPED, "length"), ("FINISHED_STOPPED", "stop")])
def test_a_whole_prompt_is_kept(status: str, why: str, side: SchedulerSide) -> None:
    request = Request(kv_transfer_params=HOLD)
    assert side.matched(request, 0) == 0
    held(side, request, 10)

    assert side.finished(request, status, [3, 4, 5, 6]) == EndingRequest(keeps=True)

    assert side.take_orders() == (KeptBlocks(request.request_id, (3, 4, 5), 10, why),)


def test_an_aborted_prefill_is_dropped_by_who_knows_its_readers(side: SchedulerSide) -> None:
    """Its blocks may be on their way to a peer, so vLLM has them back from the worker."""
    request = Request(kv_transfer_params=HOLD)
    held(side, request, 4)

    assert side.finished(request, ABORTED, [3]) == EndingRequest(keeps=True)

    (drop,) = side.take_orders()
    assert isinstance(drop, Drop)


@pytest.mark.parametrize("preempted", [False, True])
def test_a_prefill_that_ends_while_another_connector_loads_for_it_has_its_blocks_freed_once(
    preempted: bool, side: SchedulerSide
) -> None:
    """In MultiConnector: vLLM frees them with the end of that load, and dies of a second word."""
    request = Request(kv_transfer_params=HOLD)
    if preempted:
        held(side, request, 4)
        side.preempted(request.request_id)
    side.allocated(request, [3, 4, 5], 0)
    side.take_orders()

    assert side.finished(request, ABORTED, []) == EndingRequest()

    (forgo,) = side.take_orders()
    assert isinstance(forgo, Forgo)
    assert not side.holding


def test_a_prefill_that_left_the_queue_has_nothing_to_drop(side: SchedulerSide) -> None:
    request = Request(kv_transfer_params=HOLD)
    side.matched(request, 0)

    assert side.finished(request, ABORTED, []) == EndingRequest()
    assert side.take_orders() == ()


def test_requests_of_nobody_else_are_left_alone(side: SchedulerSide) -> None:
    request = Request(kv_transfer_params=None)

    assert side.matched(request, 0) == 0
    side.allocated(request, [1, 2, 3], 0)
    assert side.finished(request, CAPPED, [1, 2, 3]) == EndingRequest()
    assert side.take_orders() == ()


@pytest.mark.parametrize(
    "more",
    [{"lora_request": object()}, {"cache_salt": "s"}, {"mm_features": [1]}, {"prompt_embeds": 1}],
    ids=lambda more: next(iter(more)),
)
def test_a_prompt_that_is_more_than_its_tokens_is_not_delegated(
    more: dict[str, Any], side: SchedulerSide
) -> None:
    """P would compute other KV; in staged mode P had the same call and has the right one."""
    assert side.matched(Request(kv_transfer_params=DELEGATE, **more), 0) == 0
    assert side.matched(Request("cmpl-q-0", kv_transfer_params=FETCH, **more), 0) == 9


def test_a_refusal_is_an_order_too(side: SchedulerSide) -> None:
    side.refuse("x", "why")

    assert side.take_orders() == (RefuseOrder("x", "why"),)
    assert side.take_orders() == ()


def test_each_step_of_a_held_prefill_is_followed(side: SchedulerSide) -> None:
    """Prompt tokens only: what is sampled after them is nobody's."""
    request = Request(kv_transfer_params=HOLD)
    side.allocated(request, [3, 4, 5], 0)
    side.take_orders()
    assert side.holding

    side.computing(request.request_id, [3, 4], 6)
    side.computing(request.request_id, [3, 4, 5], 11)
    side.computing("another", [9], 1)

    assert side.take_orders() == (
        Progress(request.request_id, (3, 4), 6),
        Progress(request.request_id, (3, 4, 5), 10),
    )
    side.finished(request, CAPPED, [3, 4, 5])
    assert not side.holding


def test_the_readers_of_a_preempted_prefill_are_evicted(side: SchedulerSide) -> None:
    request = Request(kv_transfer_params=HOLD)
    side.allocated(request, [3, 4, 5], 0)
    side.take_orders()

    side.preempted(request.request_id)
    side.preempted("another")

    assert side.take_orders() == (Evict(request.request_id),)


def test_a_prefill_of_vllm_nixl_says_where_its_blocks_are(side: SchedulerSide) -> None:
    side.answers_with({"remote_host": "h", "remote_block_ids": []})
    request = Request(kv_transfer_params=ASK)
    side.matched(request, BLOCK)
    held(side, request, 10)

    ending = side.finished(request, CAPPED, [3, 4, 5, 6])

    assert ending.keeps
    assert ending.answer == {
        "remote_host": "h",
        "remote_request_id": request.request_id,
        "remote_block_ids": [[3, 4, 5]],
        "remote_num_tokens": 10,
        "remote_prefill_cached_tokens": BLOCK,
    }


@pytest.mark.parametrize(("params", "status"), [(HOLD, CAPPED), (ASK, ABORTED)])
def test_nobody_else_is_told_of_blocks(
    params: dict[str, Any], status: str, side: SchedulerSide
) -> None:
    """vllm-kvt meets by request id; and what was aborted has nothing to read."""
    side.answers_with({"remote_host": "h"})
    request = Request(kv_transfer_params=params)
    held(side, request, 10)

    assert side.finished(request, status, [3, 4, 5]) == EndingRequest(keeps=True)


@pytest.mark.parametrize(
    ("params", "as_abort"), [(FETCH, True), (DELEGATE, True), (ANSWER, False)], ids=repr
)
def test_a_load_that_failed_ends_as_its_protocol_says(
    params: dict[str, Any], as_abort: bool, side: SchedulerSide
) -> None:
    request = Request(kv_transfer_params=params)
    side.allocated(request, [5, 6, 7], 9)

    assert side.finished(request, FAILED, []) == EndingRequest(as_abort=as_abort)


def test_what_fails_after_its_load_was_not_its_load(side: SchedulerSide) -> None:
    """A grammar that cannot be compiled, say: vLLM tells its client."""
    request = Request(kv_transfer_params=FETCH)
    side.allocated(request, [5, 6, 7], 9)
    side.allocated(request, [5, 6, 7], 0)

    assert side.finished(request, FAILED, []) == EndingRequest()
