"""The sentences of "Request Scheduling Rules", one by one.

Source: AWS Neuron documentation, "Disaggregated Inference".
"""

import itertools

import pytest

from pdgate.engine.cache.prefix import BlockPool
from pdgate.engine.job import Job
from pdgate.engine.scheduler import StepLimits, StepScheduler
from pdgate.engine.worker_rules import (
    RequestCounts,
    RequestState,
    decode_may_run,
    places,
    prefill_may_run,
)

BATCH = 3
EVERY = [RequestCounts(t, r) for t, r in itertools.product(range(BATCH + 2), repeat=2)]


def test_requests_can_be_waiting_transferring_or_running() -> None:
    assert set(RequestState) == {"waiting", "transferring", "running"}


class TestPrefillWorker:
    def test_only_one_request_can_run_at_a_time(self) -> None:
        assert not any(prefill_may_run(counts, BATCH) for counts in EVERY if counts.running)

    def test_total_of_transferring_and_running_must_not_exceed_batch_size(self) -> None:
        for counts in EVERY:
            if prefill_may_run(counts, BATCH):
                assert counts.transferring + counts.running + 1 <= BATCH
            if room := places(counts, BATCH):
                assert counts.transferring + counts.running + room == BATCH

    def test_can_start_new_requests_when_nothing_is_running_and_transfers_are_less_than_batch_size(
        self,
    ) -> None:
        assert [c for c in EVERY if prefill_may_run(c, BATCH)] == [
            RequestCounts(transferring, 0) for transferring in range(BATCH)
        ]


class TestDecodeWorker:
    @pytest.mark.parametrize("counts", EVERY)
    def test_running_and_transferring_must_not_exceed_batch_size(
        self, counts: RequestCounts
    ) -> None:
        assert places(counts, BATCH) <= max(0, BATCH - counts.running - counts.transferring)

    def test_running_must_not_exceed_batch_size(self) -> None:
        full = RequestCounts(transferring=1, running=BATCH)
        assert not decode_may_run(
            RequestState.TRANSFERRING, kv_complete=True, counts=full, batch=BATCH
        )

    def test_must_finish_key_value_cache_transfer_before_running(self) -> None:
        free = RequestCounts(transferring=1)
        assert decode_may_run(RequestState.TRANSFERRING, kv_complete=True, counts=free, batch=BATCH)
        assert not decode_may_run(
            RequestState.TRANSFERRING, kv_complete=False, counts=free, batch=BATCH
        )
        assert not decode_may_run(RequestState.WAITING, kv_complete=True, counts=free, batch=BATCH)

    def test_can_start_new_transfers_when_there_is_space(self) -> None:
        assert [places(RequestCounts(t, 1), BATCH) for t in range(4)] == [2, 1, 0, 0]


class TestTheEnginesScheduler:
    """It has rules of its own making; where the page speaks, they are the page's."""

    @pytest.mark.parametrize("transferring", range(BATCH + 1))
    @pytest.mark.parametrize("running", [0, 1])
    def test_a_prompt_begins_where_the_page_lets_it(self, running: int, transferring: int) -> None:
        made = StepScheduler(StepLimits(BATCH, max_tokens=4), BlockPool(64, 4))
        for number in range(running):
            # Longer than a step, so that it is still running in the next one.
            made.add(prompt(f"earlier {number}"))
            made.step(0)
        made.add(new := prompt("new"))

        made.step(transferring)

        allowed = prefill_may_run(RequestCounts(transferring, running), BATCH)
        assert (new.state.value == "running") == allowed

    def test_a_request_runs_when_its_kv_is_complete_and_not_before(self) -> None:
        made = StepScheduler(StepLimits(BATCH, max_tokens=16), BlockPool(64, 4))
        made.add(one := Job("far", list(range(6)), 6, load=6))
        assert made.step(0).loads == [one]
        assert not decode_may_run(
            RequestState.TRANSFERRING, kv_complete=False, counts=RequestCounts(1), batch=BATCH
        )
        assert made.step(0).chunks == []

        made.loaded(one, ok=True)

        assert decode_may_run(
            RequestState.TRANSFERRING, kv_complete=True, counts=RequestCounts(1), batch=BATCH
        )
        assert [chunk.job for chunk in made.step(0).chunks] == [one]


def prompt(name: str) -> Job:
    """Of six tokens that no other has, to be handed over."""
    tokens = [sum(name.encode()) * 1000 + position for position in range(6)]
    return Job(name, tokens, 6, goal=6, pinned=True)
