"""Whatever requests, peers and preemptions do, vLLM gets what it asserts, and its blocks back."""

from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from tests.engine.vllm.fake_vllm import PROMPT, TOTAL_BLOCKS, FakeVllm
from tests.engine.vllm.moody_peer import HOLDS, LEASE_SECONDS, LOADS, params

STEPS_TO_THE_END = 500

one_of = st.data()


class Life(RuleBasedStateMachine):
    recomputes: ClassVar = False

    def __init__(self) -> None:
        super().__init__()
        self.vllm = FakeVllm(recomputes=self.recomputes)
        self.peer = self.vllm.peer

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

    @precondition(lambda self: self.peer.loading)
    @rule(data=one_of, error=st.sampled_from([None, "broken peer"]), early=st.booleans())
    def a_load_ends(self, data: st.DataObject, error: str | None, early: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.peer.loading)))
        if error and early:
            self.vllm.worker.gave_up(name, error)
            self.vllm.step()
        self.peer.end_load(name, error)

    @precondition(lambda self: self.peer.offered.keys() - self.peer.reading.keys())
    @rule(data=one_of)
    def a_reader_comes(self, data: st.DataObject) -> None:
        free = sorted(self.peer.offered.keys() - self.peer.reading.keys())
        self.peer.enter(data.draw(st.sampled_from(free)))

    @precondition(lambda self: self.peer.reading)
    @rule(data=one_of)
    def a_reader_leaves(self, data: st.DataObject) -> None:
        self.peer.go(data.draw(st.sampled_from(sorted(self.peer.reading))))

    def teardown(self) -> None:
        """Everybody leaves, and nothing is left behind."""
        for _ in range(STEPS_TO_THE_END):
            for name in list(self.peer.loading):
                self.peer.end_load(name, None)
            for name in list(self.peer.reading):
                self.peer.go(name)
            self.vllm.now += LEASE_SECONDS
            self.vllm.step()
            if not self.vllm.requests:
                break
        assert self.vllm.requests == {}
        assert len(self.vllm.free) == TOTAL_BLOCKS
        assert self.vllm.received == dict.fromkeys(self.vllm.started, 1)
        assert self.vllm.worker.held_blocks == 0


class RecomputingLife(Life):
    recomputes = True


TestLife = Life.TestCase
TestRecomputingLife = RecomputingLife.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=40)
TestRecomputingLife.settings = TestLife.settings
