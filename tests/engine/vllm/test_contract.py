"""Whatever requests, peers and preemptions do, vLLM gets what it asserts, and its blocks back."""

from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from tests.engine.vllm.fake_vllm import PROMPT, TOTAL_BLOCKS, FakeVllm
from tests.engine.vllm.moody_peer import HOLDS, LEASE_SECONDS, LOADS, params

STEPS_TO_THE_END = 500

one_of = st.data()


class Life(RuleBasedStateMachine):
    recomputes: ClassVar = False
    apart: ClassVar = 0

    def __init__(self) -> None:
        super().__init__()
        self.vllm = FakeVllm(recomputes=self.recomputes, apart=self.apart)

    @rule(mood=st.sampled_from(HOLDS))
    def a_prefill_comes(self, mood: str) -> None:
        self.vllm.arrive(params("do_remote_decode", mood))

    @rule(mood=st.sampled_from(LOADS), staged=st.booleans())
    def a_decode_comes(self, mood: str, staged: bool) -> None:
        self.vllm.arrive(params("do_remote_prefill" if staged else "delegated", mood))

    @rule(tokens=st.integers(1, len(PROMPT) - 1), is_known=st.booleans())
    def a_prefill_comes_with_a_loan(self, tokens: int, is_known: bool) -> None:
        self.vllm.arrive_with_loan(tokens, is_known=is_known)

    @rule(times=st.integers(1, 3))
    def time_passes(self, times: int) -> None:
        for _ in range(times):
            self.vllm.step()

    @rule()
    def leases_end(self) -> None:
        self.vllm.now += LEASE_SECONDS
        self.vllm.step()

    @precondition(lambda self: self.vllm.in_state("waiting", "loading", "loaded", "running"))
    @rule(data=one_of)
    def a_client_leaves(self, data: st.DataObject) -> None:
        live = self.vllm.in_state("waiting", "loading", "loaded", "running")
        self.vllm.abort(data.draw(st.sampled_from(live)))

    @precondition(lambda self: self.vllm.in_state("running"))
    @rule(data=one_of)
    def room_is_needed(self, data: st.DataObject) -> None:
        self.vllm.preempt(data.draw(st.sampled_from(self.vllm.in_state("running"))))

    @property
    def loading(self) -> list[tuple[int, str]]:
        """Worker and request of each load."""
        return [(n, name) for n, peer in enumerate(self.vllm.peers) for name in peer.loading]

    @property
    def offered(self) -> list[tuple[int, str]]:
        return [
            (n, name)
            for n, peer in enumerate(self.vllm.peers)
            for name in peer.offered.keys() - peer.reading.keys()
        ]

    @property
    def reading(self) -> list[tuple[int, str]]:
        return [(n, name) for n, peer in enumerate(self.vllm.peers) for name in peer.reading]

    @precondition(lambda self: self.loading)
    @rule(data=one_of, error=st.sampled_from([None, "broken peer"]), early=st.booleans())
    def a_load_ends(self, data: st.DataObject, error: str | None, early: bool) -> None:
        worker, name = data.draw(st.sampled_from(sorted(self.loading)))
        if error and early:
            self.vllm.workers[worker].gave_up(name, error)
            self.vllm.step()
            assert self.vllm.knows_that_it_fails(name)
        self.vllm.peers[worker].end_load(name, error)

    @precondition(lambda self: self.offered)
    @rule(data=one_of)
    def a_reader_comes(self, data: st.DataObject) -> None:
        worker, name = data.draw(st.sampled_from(sorted(self.offered)))
        self.vllm.peers[worker].enter(name)

    @precondition(lambda self: self.reading)
    @rule(data=one_of)
    def a_reader_leaves(self, data: st.DataObject) -> None:
        worker, name = data.draw(st.sampled_from(sorted(self.reading)))
        self.vllm.peers[worker].go(name)

    def teardown(self) -> None:
        """Everybody leaves, and nothing is left behind."""
        for _ in range(STEPS_TO_THE_END):
            for worker, name in self.loading:
                self.vllm.peers[worker].end_load(name, None)
            for worker, name in self.reading:
                self.vllm.peers[worker].go(name)
            self.vllm.now += LEASE_SECONDS
            self.vllm.step()
            if not self.vllm.requests:
                break
        assert self.vllm.requests == {}
        assert len(self.vllm.free) == TOTAL_BLOCKS
        assert self.vllm.received == dict.fromkeys(self.vllm.started, 1)
        assert [worker.held_blocks for worker in self.vllm.workers] == [0] * (self.apart or 1)


class RecomputingLife(Life):
    recomputes = True


class LifeWithTwoWorkers(Life):
    apart = 2


class RecomputingLifeWithTwoWorkers(RecomputingLife):
    apart = 2


TestLife = Life.TestCase
TestRecomputingLife = RecomputingLife.TestCase
TestLifeWithTwoWorkers = LifeWithTwoWorkers.TestCase
TestRecomputingLifeWithTwoWorkers = RecomputingLifeWithTwoWorkers.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=40)
TestRecomputingLife.settings = TestLife.settings
TestLifeWithTwoWorkers.settings = TestLife.settings
TestRecomputingLifeWithTwoWorkers.settings = TestLife.settings


@pytest.mark.parametrize("recomputes", [False, True], ids=["fail", "recompute"])
@pytest.mark.parametrize("apart", [0, 1, 2], ids=["in process", "apart", "two workers"])
def test_a_load_of_a_silent_peer_fails_at_once_and_keeps_its_blocks(
    apart: int, recomputes: bool
) -> None:
    """Each worker says at its own time that it gave up, as each has a conversation of its own."""
    vllm = FakeVllm(recomputes=recomputes, apart=apart)
    vllm.arrive(params("delegated", "loaded"))
    vllm.step()
    (request,) = vllm.in_state("loading")
    blocks, name = set(request.blocks), request.request_id

    for worker in vllm.workers:
        worker.gave_up(name, "silent peer")
        vllm.step()
        assert vllm.knows_that_it_fails(name)
        assert not vllm.free & blocks

    for peer in vllm.peers:
        assert not vllm.free & blocks
        peer.end_load(name, "silent peer")
        vllm.step()
    for _ in range(10):
        vllm.step()
    assert (vllm.requests, len(vllm.free)) == ({}, TOTAL_BLOCKS)
