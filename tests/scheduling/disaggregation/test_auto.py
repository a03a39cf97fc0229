"""Auto takes the way that keeps callers waiting for less, as far as it has seen."""

from dataclasses import dataclass, replace

import msgspec
import pytest

from pdgate.protocols.call import Call
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.disaggregation import Auto, Decision, Taken, UncachedTokensAbove
from pdgate.scheduling.disaggregation.auto import LOOK_EVERY
from pdgate.scheduling.disaggregation.decision import (
    LONG_PROMPT,
    MEASURING,
    PREFILL_IS_BUSY,
    SHORT_PROMPT,
    SOONER,
)
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.latency.model import ENOUGH, LatencyModel, Rate
from pdgate.scheduling.latency.step_time import StepTime
from pdgate.scheduling.policies.round_robin import RoundRobin
from pdgate.scheduling.scheduler import Scheduler
from tests.support.scripted import D0, D1, P0, chat, fleet

THRESHOLDS = UncachedTokensAbove(tokens=1000, max_prefill_calls=2)


def call_of(tokens: int, *, stream: bool = True) -> Call:
    return msgspec.structs.replace(chat(stream=stream), prompt_tokens=tokens)


def learnt(fixed: float, per_token: float) -> Rate:
    """What many calls of several sizes have shown."""
    speed = Rate()
    for turn in range(200):
        tokens = 100 * (turn % 20)
        speed.learn(tokens, fixed + per_token * tokens)
    return speed


def paced(longer_per_token: float) -> StepTime:
    """What many stretches with and without reading have shown, of steps of 20 ms."""
    pace = StepTime()
    for tokens in [0, 100, 200] * 100:
        pace.learn(8, tokens, 8 * 0.02 + tokens * longer_per_token)
    return pace


@dataclass
class Reading:
    """A reservation, as far as rules go by it."""

    instance: Instance
    unread_tokens: int


class Engines:
    """P computes at 1 ms a token, D at `local` seconds; taking KV over costs 100 ms."""

    def __init__(self, local: float = 0.002, loading: float = 0.1) -> None:
        self.p = Endpoint(P0, calls=1, latency=LatencyModel(prefill_rate=learnt(0.0, 0.001)))
        self.d = Endpoint(
            D0,
            latency=LatencyModel(
                prefill_rate=learnt(0.0, local), loading_rate=learnt(loading, 0.0)
            ),
        )

    def reading(self, tokens: int) -> Endpoint:
        """P, as it is with so much to read."""
        return Endpoint(P0, calls=1, unread_tokens=tokens, latency=self.p.latency)

    def decide(self, rule: Auto, tokens: int, *, stream: bool = True) -> Decision:
        """As the scheduler asks: the call waits at P already."""
        self.p.unread_tokens += tokens
        try:
            return rule.decide(call_of(tokens, stream=stream), self.p, [self.d])
        finally:
            self.p.unread_tokens -= tokens


def auto() -> Auto:
    return Auto(THRESHOLDS)


@pytest.mark.parametrize(
    ("tokens", "taken"), [(20, Taken.LOCAL), (80, Taken.LOCAL), (120, Taken.SPLIT)]
)
def test_a_hand_over_pays_from_the_length_on_that_makes_up_for_it(
    tokens: int, taken: Taken
) -> None:
    """Decode needs 1 ms a token more, and a hand-over 100 ms."""
    decided = Engines().decide(auto(), tokens)

    assert (decided.taken, decided.reason) == (taken, SOONER)


def test_a_queue_at_prefill_counts_as_what_it_takes_to_read() -> None:
    engines = Engines()
    assert engines.decide(auto(), 500).taken is Taken.SPLIT

    engines.p.unread_tokens = 2000

    assert engines.decide(auto(), 500).taken is Taken.LOCAL


def test_prompts_that_wait_at_decode_count_too() -> None:
    engines = Engines()
    assert engines.decide(auto(), 50).taken is Taken.LOCAL

    engines.d.unread_tokens = 500

    assert engines.decide(auto(), 50).taken is Taken.SPLIT


def test_every_answer_that_ends_later_counts() -> None:
    """Its own first token would come sooner at decode, and two answers would lose 80 ms each."""
    engines = Engines()
    engines.d.latency.step_time = paced(longer_per_token=0.001)
    assert engines.decide(auto(), 80).taken is Taken.LOCAL

    engines.d.answering = engines.d.calls = 2

    decided = engines.decide(auto(), 80)
    assert decided.taken is Taken.SPLIT
    assert decided.local_seconds == pytest.approx(0.16, rel=0.1)
    assert decided.held_up_seconds == pytest.approx(0.16, rel=0.1)


def test_a_prompt_that_rides_along_holds_nobody_up() -> None:
    """It waits for a step and is read in the next one, which takes no longer for it."""
    engines = Engines()
    engines.d.latency.step_time = paced(longer_per_token=0.0)
    engines.d.answering = engines.d.calls = 50

    decided = engines.decide(auto(), 80)

    assert decided.taken is Taken.LOCAL
    assert decided.held_up_seconds == pytest.approx(0.0, abs=1e-6)


def test_calls_whose_answer_has_not_begun_lose_half() -> None:
    """They wait for prefill, or for their own turn to be read, and begin while this is read."""
    engines = Engines()
    engines.d.latency.step_time = paced(longer_per_token=0.001)
    engines.d.answering, engines.d.calls = 2, 6

    assert engines.decide(auto(), 80).held_up_seconds == pytest.approx(4 * 0.08, rel=0.1)


@pytest.mark.parametrize("tokens", [20, 80, 120, 2000])
@pytest.mark.parametrize("answering", [0, 2, 50])
def test_an_answer_that_is_no_stream_is_decided_for_like_one(tokens: int, answering: int) -> None:
    """Its client waits for the same first token, and for all that come after it."""
    engines = Engines()
    engines.d.latency.step_time = paced(longer_per_token=0.001)
    engines.d.answering = engines.d.calls = answering

    assert engines.decide(auto(), tokens, stream=False) == engines.decide(auto(), tokens)


def test_a_slow_transfer_keeps_calls_local() -> None:
    assert Engines(loading=5.0).decide(auto(), 2000).taken is Taken.LOCAL


def test_the_decode_engine_that_is_soonest_counts() -> None:
    engines = Engines(local=0.1)
    other = Endpoint(
        D1, latency=LatencyModel(prefill_rate=learnt(0.0, 0.0001), loading_rate=learnt(0.1, 0.0))
    )
    engines.p.unread_tokens = 100

    decided = auto().decide(call_of(100), engines.p, [engines.d, other])

    assert decided.taken is Taken.LOCAL
    assert decided.local_seconds == pytest.approx(0.01, rel=0.2)


def test_an_engine_of_both_roles_may_keep_what_it_would_read_for_others() -> None:
    """It has half of the prompt cached, which is in its account, as the call is."""
    engines = Engines()
    engines.p = Endpoint(replace(P0, role=Role.BOTH), latency=engines.p.latency, calls=1)
    engines.d.latency = LatencyModel(prefill_rate=learnt(0.0, 0.001), loading_rate=learnt(0.1, 0.0))
    engines.p.unread_tokens = 500

    decision = auto().decide(call_of(1000), engines.p, [engines.d])

    assert (decision.taken, decision.among) == (Taken.LOCAL, (P0.id,))
    assert decision.local_seconds == pytest.approx(0.5, rel=0.02)
    # Others that it answers lose what the prompt takes, and it is split.
    engines.p.latency.step_time = paced(0.001)
    engines.p.calls, engines.p.answering = 9, 8
    assert auto().decide(call_of(1000), engines.p, [engines.d]).taken is Taken.SPLIT


def test_what_waits_at_the_reader_of_both_roles_is_not_this_calls_to_hold_others_up() -> None:
    """They are held up by what this call adds: a tenth of its prompt."""
    engines = Engines()
    engines.p = Endpoint(replace(P0, role=Role.BOTH), latency=engines.p.latency, calls=9)
    engines.p.latency.step_time = paced(0.001)
    engines.p.answering, engines.p.unread_tokens = 8, 1100
    engines.d.latency = LatencyModel(prefill_rate=learnt(0.0, 0.01), loading_rate=learnt(2.0, 0.0))

    decision = auto().decide(call_of(1000), engines.p, [engines.d], {P0.id: 900})

    assert (decision.taken, decision.among) == (Taken.LOCAL, (P0.id,))
    assert decision.held_up_seconds == pytest.approx(8 * 0.1, rel=0.1)


def test_one_that_is_to_answer_no_calls_now_keeps_none() -> None:
    """With adaptive roles: the call would go to another one, which has nothing of the prompt."""
    engines = Engines()
    engines.p = Endpoint(
        replace(P0, role=Role.BOTH),
        latency=engines.p.latency,
        calls=1,
        sides=frozenset({Role.PREFILL}),
    )
    engines.d.latency = LatencyModel(prefill_rate=learnt(0.0, 0.001), loading_rate=learnt(0.1, 0.0))
    engines.p.unread_tokens = 500

    decision = auto().decide(call_of(1000), engines.p, [engines.d])

    assert decision.taken is Taken.SPLIT
    assert decision.local_seconds == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize(("tokens", "at"), [(100, "b0"), (5000, "b1")])
def test_a_reader_without_room_for_the_call_is_no_way_to_keep_it_local(
    tokens: int, at: str
) -> None:
    """The one with room has others' prompts to read, so what the call would cost there is not less."""
    both = [replace(P0, id=f"b{n}", role=Role.BOTH) for n in range(2)]
    endpoints = fleet(*both)
    scheduler = Scheduler(endpoints, RoundRobin(), RoundRobin(), RoundRobin(), auto())
    for one, length in zip(endpoints, (4000, 8000), strict=True):
        one.latency = LatencyModel(prefill_rate=learnt(0.0, 0.001), loading_rate=learnt(0.1, 0.0))
        endpoints.mark_up(one.instance.id, ["m"], {"m": length})
    b0, b1 = endpoints
    b1.unread_tokens = 3000
    call = msgspec.structs.replace(chat(max_tokens=tokens), prompt_tokens=1000)
    stays = scheduler.stays(call, b0)
    b0.calls, b0.unread_tokens = 1, 1000

    decision = scheduler.decide(call, Reading(both[0], 1000))

    local = at == "b0"
    assert (stays, decision.taken) == (local, Taken.LOCAL if local else Taken.SPLIT)
    assert decision.local_seconds == pytest.approx(1.0 if local else 4.0, rel=0.02)


def test_what_was_expected_is_told() -> None:
    decided = Engines().decide(auto(), 1000)

    assert decided.split_seconds == pytest.approx(1.1, rel=0.1)
    assert decided.local_seconds == pytest.approx(2.0, rel=0.1)


def test_first_of_all_both_ways_are_measured() -> None:
    p, d = Endpoint(P0, calls=1), Endpoint(D0)
    assert auto().decide(call_of(500), p, [d]) == Decision(Taken.SPLIT, MEASURING)

    p.latency.prefill_rate, d.latency.loading_rate = learnt(0.0, 0.001), learnt(0.1, 0.0)

    decided = auto().decide(call_of(500), p, [d])
    assert (decided.taken, decided.reason) == (Taken.LOCAL, MEASURING)


@pytest.mark.parametrize(
    ("tokens", "stream", "other_calls", "reason"),
    [
        (500, False, 0, SHORT_PROMPT),
        (500, True, 1, SHORT_PROMPT),
        (5000, False, 0, LONG_PROMPT),
        (5000, True, 2, PREFILL_IS_BUSY),
    ],
)
def test_thresholds_decide_where_nothing_is_known_and_nothing_would_be_learnt(
    tokens: int, stream: bool, other_calls: int, reason: str
) -> None:
    """Of an answer that is no stream nobody sees the first token, and a queue says little."""
    p, d = Endpoint(P0, calls=1 + other_calls), Endpoint(D0, calls=1, unread_tokens=1)

    assert auto().decide(call_of(tokens, stream=stream), p, [d]).reason == reason


@pytest.mark.parametrize(("calls", "reason"), [(0, MEASURING), (1, LONG_PROMPT)])
def test_a_long_prompt_goes_to_decode_to_be_measured_only_if_nobody_is_there(
    calls: int, reason: str
) -> None:
    """It would hold up the streams."""
    p = Endpoint(P0, calls=1, latency=LatencyModel(prefill_rate=learnt(0.0, 0.001)))
    d = Endpoint(D0, calls=calls, latency=LatencyModel(loading_rate=learnt(0.1, 0.0)))

    assert auto().decide(call_of(1001), p, [d]).reason == reason


def test_the_way_not_taken_is_measured_now_and_then() -> None:
    engines, rule = Engines(), auto()

    decided = [engines.decide(rule, 500) for _ in range(3 * LOOK_EVERY)]

    looks = [one for one in decided if one.reason == MEASURING]
    assert len(looks) == 3
    assert {one.taken for one in looks} == {Taken.LOCAL}
    assert {one.taken for one in decided if one.reason == SOONER} == {Taken.SPLIT}


@pytest.mark.parametrize("tokens", [20, 500])
def test_to_ask_what_would_be_decided_takes_no_look_and_brings_none_nearer(tokens: int) -> None:
    """Who asks for it is not the call that would look."""
    engines, rule = Engines(), auto()

    asked, decided = [], []
    for _ in range(3 * LOOK_EVERY):
        asked.append(rule.would_split(call_of(tokens), engines.reading(tokens), [engines.d]))
        decided.append(engines.decide(rule, tokens))

    assert asked == [tokens == 500] * len(asked)
    assert [n + 1 for n, one in enumerate(decided) if one.reason == MEASURING] == [50, 100, 150]


def test_what_would_be_decided_is_what_is_while_the_ways_are_not_known() -> None:
    p, d = Endpoint(P0, calls=1), Endpoint(D0)
    assert auto().would_split(call_of(500), p, [d])

    p.latency.prefill_rate, d.latency.loading_rate = learnt(0.0, 0.001), learnt(0.1, 0.0)

    assert not auto().would_split(call_of(500), p, [d])


def test_a_prefill_that_was_slow_once_is_found_to_be_well_again() -> None:
    """Else it would get no calls for ever, and nothing new would be learnt of it."""
    engines, rule = Engines(), auto()
    engines.p.latency.prefill_rate = learnt(0.0, 0.01)
    assert engines.decide(rule, 500).taken is Taken.LOCAL

    for _ in range(30 * LOOK_EVERY):
        if engines.decide(rule, 500).taken is Taken.SPLIT:
            engines.p.latency.prefill_rate.learn(500, 0.5)

    assert engines.decide(rule, 500).taken is Taken.SPLIT


def test_the_scheduler_learns_from_what_reservations_say() -> None:
    rule = auto()
    scheduler = Scheduler(fleet(P0, D0), RoundRobin(), RoundRobin(), RoundRobin(), rule)
    call = call_of(500)
    for _ in range(ENOUGH):
        with scheduler.reserve(Role.PREFILL, call) as prefill:
            prefill.has_read(0.5)
        with scheduler.reserve(Role.DECODE, call) as decode:
            decode.has_loaded(0.1)
        with scheduler.reserve(Role.DECODE, call, reads=True) as decode:
            decode.has_read(1.0)

    with scheduler.reserve(Role.PREFILL, call) as prefill:
        decided = scheduler.decide(call, prefill)

    assert decided.taken is Taken.SPLIT
    assert decided.reason == SOONER
    assert decided.split_seconds == pytest.approx(0.6)
    assert decided.local_seconds == pytest.approx(1.0)


def test_who_is_answered_is_seen_by_first_tokens_or_taken_to_be() -> None:
    """Of an answer that is no stream nobody sees the first token."""
    scheduler = Scheduler(
        instances := fleet(P0, D0), RoundRobin(), RoundRobin(), RoundRobin(), auto()
    )
    decode = instances.get("d0")
    assert decode is not None
    with (
        scheduler.reserve(Role.DECODE, call_of(500)) as loads,
        scheduler.reserve(Role.DECODE, call_of(500), reads=True) as reads,
        scheduler.reserve(Role.DECODE, call_of(500, stream=False)),
    ):
        assert decode.answering == 1
        loads.has_loaded(0.1)
        assert decode.answering == 2
        reads.has_read(1.0)
        assert decode.answering == 3
        reads.end()
        assert decode.answering == 2
    assert decode.answering == 0


def test_what_is_read_waits_for_nobody() -> None:
    instances = fleet(P0, D0)
    scheduler = Scheduler(instances, RoundRobin(), RoundRobin(), RoundRobin(), auto())
    call = call_of(500)

    def unread() -> dict[str, int]:
        return {c.instance.id: c.unread_tokens for c in instances}

    with (
        scheduler.reserve(Role.PREFILL, call) as prefill,
        scheduler.reserve(Role.DECODE, call),
        scheduler.reserve(Role.DECODE, call, reads=True) as local,
    ):
        assert unread() == {"p0": 500, "d0": 500}
        local.has_read(1.0)
        assert unread() == {"p0": 500, "d0": 0}
        prefill.end()
        assert unread() == {"p0": 0, "d0": 0}
    assert unread() == {"p0": 0, "d0": 0}
