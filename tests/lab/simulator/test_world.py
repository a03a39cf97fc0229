"""Whole simulations: the real scheduler over simulated engines."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from pdgate.lab.simulator.fleet import Outage
from pdgate.lab.simulator.hardware import PRESETS
from pdgate.lab.simulator.journey import LEASE_SECONDS
from pdgate.lab.simulator.outcome import SimulatedOutcome
from pdgate.lab.simulator.summary import summary
from pdgate.lab.simulator.synthetic import conversations
from pdgate.lab.simulator.trace import TraceCall, faster
from pdgate.lab.simulator.world import Ran, WorldPlan, run
from pdgate.protocols.call import Call
from pdgate.scheduling.admission import Limits
from pdgate.scheduling.disaggregation import Always, Auto, Never, UncachedTokensAbove
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.policy_context import PolicyContext, Targets

ASKS = conversations(120, 3.0, Random(5))
PLAN = WorldPlan(prefills=2, decodes=2)


def shape(ran: Ran) -> Sequence[tuple[str, str, float | None, float | None]]:
    return [(o.prefill, o.decode, o.first, o.ended) for o in ran.outcomes]


@pytest.mark.parametrize("policy", ["least_loaded", "random_two"])
def test_the_same_seed_gives_the_same_result(policy: str) -> None:
    plan = replace(PLAN, prefill_policy=policy, decode_policy=policy)

    one, again, other = (shape(run(replace(plan, seed=seed), ASKS)) for seed in (1, 1, 2))

    assert one == again
    assert one != other


def test_engines_that_do_both_serve_a_conversation_where_it_has_been() -> None:
    """A call that is not split stays at the engine that was chosen to read it, which has what was said before."""
    plan = replace(PLAN, prefills=0, decodes=0, both=4, rule=Never)
    asks = conversations(200, 1.0, Random(3))

    outcomes = run(plan, asks).outcomes
    found = sum(one.found_tokens for one in outcomes)
    known = sum(one.found_tokens for one in run(replace(plan, both=2), asks).outcomes)

    assert all(one.local for one in outcomes)
    assert found > 0.9 * known > 0


def test_engines_that_answer_may_be_of_another_kind() -> None:
    slow = PRESETS["8b"].times_as_fast(0.5)

    usual, slower = (run(plan, ASKS) for plan in (PLAN, replace(PLAN, decode_hardware=slow)))

    assert [o.prefilled for o in usual.outcomes][:5] == [o.prefilled for o in slower.outcomes][:5]
    assert min(o.tpot or 1 for o in slower.outcomes) > 1.9 * min(
        o.tpot or 1 for o in usual.outcomes
    )


def test_every_call_is_answered_and_all_accounts_are_empty_in_the_end() -> None:
    done = 0

    def progress(calls: int) -> None:
        nonlocal done
        done += calls

    ran = run(PLAN, ASKS, progress=progress)

    assert done == len(ASKS)
    assert {outcome.why for outcome in ran.outcomes} == {""}
    for o in ran.outcomes:
        times = (o.ask.at, o.began, o.prefilled, o.first, o.ended)
        known = [time for time in times if time is not None]
        assert len(known) == 5
        assert known == sorted(known)


def test_a_call_alone_takes_what_its_hardware_says() -> None:
    hardware, ask = PRESETS["8b"], TraceCall(0.0, 8000, 101, ())
    ran = run(WorldPlan(prefills=1, decodes=1), [ask])

    (outcome,) = ran.outcomes
    reading = hardware.step_seconds(0, 0, 8000, 8000 * 4000)
    moving = hardware.transfer_seconds(8000)
    step = hardware.step_seconds(1, 8000)
    assert outcome.ttft == pytest.approx(reading + moving + step)
    assert outcome.tpot == pytest.approx(hardware.step_seconds(1, 8050), rel=0.001)


class Watching(Policy):
    """Takes the first, and remembers what was in flight there."""

    def __init__(self, seen: list[int]) -> None:
        self._seen = seen

    def choose(self, call: Call, endpoints: Sequence[Endpoint]) -> Endpoint:
        self._seen.append(endpoints[0].calls)
        return endpoints[0]


def test_policies_see_the_real_accounts() -> None:
    seen: dict[str, list[int]] = {}

    def watching(name: str, context: PolicyContext) -> Policy:
        return Watching(seen.setdefault(context.role, []))

    asks = [TraceCall(0.0, 1000, 2, ()), TraceCall(0.0, 1000, 2, ()), TraceCall(100.0, 1000, 2, ())]
    run(PLAN, asks, policy=watching)

    assert seen["prefill"] == seen["decode"] == [0, 1, 0]


def test_engines_that_do_either_serve_both_sides_of_different_calls() -> None:
    ran = run(WorldPlan(prefills=0, decodes=0, both=3), ASKS)

    assert {outcome.why for outcome in ran.outcomes} == {""}
    assert all(outcome.prefill != outcome.decode for outcome in ran.outcomes)
    for side in ({o.prefill for o in ran.outcomes}, {o.decode for o in ran.outcomes}):
        assert side == {"b0", "b1", "b2"}
    assert summary(ran).prefill_busy == summary(ran).decode_busy > 0


def test_engines_that_wait_for_each_others_memory_do_not_do_so_for_ever() -> None:
    """Each keeps a prompt for the other, and has no room for the other's; then a lease ends."""
    hardware = replace(PRESETS["8b"], kv_tokens=20_000)
    plan = WorldPlan("round_robin", "round_robin", 0, 0, hardware, both=2)
    ran = run(plan, [TraceCall(0.0, 12_000, 5, ()), TraceCall(0.0, 12_000, 5, ())])

    assert [outcome.why for outcome in ran.outcomes] == ["", ""]
    assert sorted(outcome.attempts for outcome in ran.outcomes) == [1, 2]
    assert all(LEASE_SECONDS < (o.ttft or 0) < LEASE_SECONDS + 5 for o in ran.outcomes)


def test_engines_that_do_either_are_counted_with_those_that_do_one_thing() -> None:
    ran = run(WorldPlan(prefills=1, decodes=1, both=1), ASKS)

    busy = ran.busy_seconds
    expected = (busy["p0"] + busy["b0"]) / 2 / ran.seconds
    assert summary(ran).prefill_busy == pytest.approx(expected)
    assert {o.prefill for o in ran.outcomes} == {"p0", "b0"}
    assert {o.decode for o in ran.outcomes} == {"d0", "b0"}


# What fits into an engine, and how fast KV moves.


def slower(**figures: float) -> WorldPlan:
    hardware = replace(PRESETS["8b"], **figures)  # type: ignore[arg-type]
    return WorldPlan(prefills=1, decodes=1, hardware=hardware)


def test_a_smaller_kv_memory_evicts_what_would_have_been_found() -> None:
    much, little = (summary(run(slower(kv_tokens=size), ASKS)) for size in (400_000, 60_000))

    assert 0 < little.hit_rate < much.hit_rate / 2


def test_a_slower_link_makes_first_tokens_later_by_what_it_takes_longer() -> None:
    ask = TraceCall(0.0, 8000, 2, ())
    fast, slow = (run(slower(link_bytes_per_second=speed), [ask]) for speed in (40e9, 1e9))

    first = [ran.outcomes[0].ttft or 0.0 for ran in (fast, slow)]
    kv_bytes = 8000 * PRESETS["8b"].kv_bytes_per_token
    assert first[1] - first[0] == pytest.approx(kv_bytes / 1e9 - kv_bytes / 40e9)


def test_a_smaller_batch_answers_calls_one_after_the_other() -> None:
    asks = [TraceCall(0.0, 100, 200, ()) for _ in range(4)]
    wide, narrow = (run(slower(calls=calls), asks) for calls in (256, 1))

    def spans(ran: Ran) -> list[tuple[float, float]]:
        return sorted((o.first or 0.0, o.ended or 0.0) for o in ran.outcomes)

    assert all(one[1] <= other[0] for one, other in pairwise(spans(narrow)))
    assert all(one[1] > other[0] for one, other in pairwise(spans(wide)))


def test_smaller_steps_read_a_prompt_in_more_of_them() -> None:
    hardware, ask = PRESETS["8b"], TraceCall(0.0, 8000, 1, ())
    ran = run(slower(step_tokens=1000), [ask])

    # Attention is the same in all, and the weights are loaded for each of eight steps.
    chunks = [
        hardware.step_seconds(0, 0, 1000, 1000 * (1000 * number + 500)) for number in range(8)
    ]
    assert ran.outcomes[0].prefilled == pytest.approx(sum(chunks))


def test_staged_calls_find_decode_when_prefill_has_answered() -> None:
    seen: dict[str, list[int]] = {}

    def watching(name: str, context: PolicyContext) -> Policy:
        return Watching(seen.setdefault(context.role, []))

    # The second is asked while the first is read, and the first's answer is over before that.
    asks = [TraceCall(0.0, 100, 2, ()), TraceCall(0.0, 8000, 2, ())]
    run(replace(PLAN, prefills=2, staged=True), asks, policy=watching)

    assert seen["decode"] == [0, 0]


def test_what_decode_reads_itself_never_sees_prefill() -> None:
    ran = run(replace(PLAN, rule=Never), ASKS)

    assert summary(ran).local == len(ASKS)
    assert ran.moved_tokens == 0
    assert summary(ran).prefill_busy == 0


def test_limits_let_no_more_than_that_begin() -> None:
    asks = [TraceCall(0.0, 1000, 50, ()) for _ in range(6)]
    ran = run(replace(PLAN, limits=Limits(decode_concurrency=1)), asks)

    began = sorted(outcome.began for outcome in ran.outcomes if outcome.began is not None)
    ended = sorted(outcome.ended for outcome in ran.outcomes if outcome.ended is not None)
    assert began[2:] == ended[:4]


def test_who_cannot_be_served_in_time_is_turned_away() -> None:
    asks = [TraceCall(0.0, 1000, 50, ()) for _ in range(6)]
    ran = run(replace(PLAN, limits=Limits(decode_concurrency=1, waiting=1)), asks)

    assert Counter(o.why for o in ran.outcomes) == {"": 3, "turned away": 3}


def at_engine(outcomes: Sequence[SimulatedOutcome], name: str, since: float, until: float) -> int:
    return sum(
        name in (o.prefill, o.decode) and o.began is not None and since < o.began < until
        for o in outcomes
    )


def test_an_engine_that_dies_gets_no_calls_until_it_is_back() -> None:
    asks = conversations(300, 3.0, Random(6))
    ran = run(replace(PLAN, outages=(Outage("p0", 20, 50),)), asks)

    assert at_engine(ran.outcomes, "p0", 21, 50) == 0
    assert at_engine(ran.outcomes, "p0", 53, 1000) > 10
    assert {o.why for o in ran.outcomes} == {""}
    assert summary(ran).retried > 0


def test_what_failed_a_call_is_not_tried_again() -> None:
    plan = replace(PLAN, outages=(Outage("p0", 0.1),))
    ran = run(plan, [TraceCall(0.0, 60_000, 5, ())], policy=lambda name, context: Watching([]))

    (outcome,) = ran.outcomes
    assert (outcome.attempts, outcome.prefill, outcome.why) == (2, "p1", "")


def test_answers_that_have_begun_are_lost_with_their_engine() -> None:
    asks = [TraceCall(0.0, 1000, 1000, ()), TraceCall(0.0, 60_000, 5, ())]
    ran = run(replace(PLAN, decodes=1, outages=(Outage("d0", 1, 2),)), asks)

    lost, tried_again = ran.outcomes
    assert lost.why == "broke off"
    assert tried_again.why == ""


def test_without_engines_calls_fail_and_nothing_hangs() -> None:
    ran = run(replace(PLAN, prefills=1, outages=(Outage("p0", 0.0),)), ASKS)

    assert {o.why for o in ran.outcomes} == {"no engine"}


def test_a_call_longer_than_memory_is_refused() -> None:
    ran = run(PLAN, [TraceCall(0.0, 400_000, 5, ()), TraceCall(0.0, 10, 5, ())])

    assert [o.why for o in ran.outcomes] == ["longer than an engine's memory", ""]


def test_calls_that_wait_in_the_gateway_are_more_often_in_time_and_end_sooner() -> None:
    """In a burst of more than can be read: no engine is idle while calls wait, and late ones go last."""
    asks = faster(conversations(1200, 3.4, Random(3)), 7)
    plan = WorldPlan(prefills=4, decodes=6, targets=Targets(5.0, 0.025))
    limits = Limits(waiting=10_000, wait_seconds=10_000.0, prefill_seconds=1.0)
    limits = limits.in_gateway(plan.targets)

    at_engines, in_gateway = (run(replace(plan, limits=one), asks) for one in (plan.limits, limits))

    assert all(outcome.why == "" for outcome in in_gateway.outcomes)
    one, other = summary(at_engines), summary(in_gateway)
    assert other.goodput > one.goodput + 0.05
    assert other.seconds < 0.9 * one.seconds
    assert other.ttft.p99 < one.ttft.p99


def test_streams_show_what_a_prompt_costs_them_as_those_of_real_engines_do() -> None:
    """By eight pieces at a time. By whole answers, in each of which engines read about as much, it seemed to cost nothing, and
    the automatic rule split next to no call."""
    asks = faster(conversations(600, 3.4, Random(3)), 4 / 3)
    plan = WorldPlan(prefills=4, decodes=4, targets=Targets(5.0, 0.025))

    always, auto = (
        summary(run(replace(plan, rule=rule), asks))
        for rule in (Always, lambda: Auto(UncachedTokensAbove()))
    )

    assert auto.goodput > always.goodput - 0.05
    assert 0 < auto.local < len(asks) / 2


def test_hundreds_of_calls_that_wait_are_not_split() -> None:
    """Each that begins lets go of the prefill engine at which it was to be read, and so of a place for the next."""
    limits = Limits(prefill_concurrency=1, waiting=10_000, wait_seconds=1e6)
    long = [TraceCall(0.0, 20_000, 2, ()) for _ in range(2)]
    short = [TraceCall(0.001, 100, 2, ()) for _ in range(1500)]

    ran = run(replace(PLAN, limits=limits, rule=UncachedTokensAbove), [*long, *short])

    assert [outcome.why for outcome in ran.outcomes if outcome.why] == []
    assert sum(outcome.local for outcome in ran.outcomes) == len(short)


def test_calls_may_wait_after_the_last_of_a_line_was_turned_away() -> None:
    """As in the gateway: the time since one began is no wait of anybody then."""
    limits = Limits(decode_concurrency=1, wait_seconds=5.0)
    at_once = [TraceCall(0.0, 100, 2, ()) for _ in range(3)]
    # One waits behind it when it begins, and for more than five seconds.
    long = [TraceCall(0.0, 100, 3000, ()), TraceCall(0.0, 100, 2, ())]
    later = [TraceCall(600.0, 100, 2, ()) for _ in range(3)]

    ran = run(replace(PLAN, prefills=1, decodes=1, limits=limits), [*at_once, *long, *later])

    assert [bool(outcome.why) for outcome in ran.outcomes] == [False] * 4 + [True] + [False] * 3


PICTURES = [TraceCall(0.0, 2000, 11, (), media=3), TraceCall(0.001, 2000, 11, ())]
ITEM_SECONDS = 0.5


def encoded_by(encoders: int, *outages: Outage) -> Ran:
    plan = replace(PLAN, encoders=encoders, item_seconds=ITEM_SECONDS, outages=outages)
    return run(plan, PICTURES)


def test_media_are_encoded_first_by_as_many_engines_as_there_are() -> None:
    one, three = (encoded_by(encoders).outcomes for encoders in (1, 3))

    assert one[0].encoded == pytest.approx(3 * ITEM_SECONDS)
    assert three[0].encoded == pytest.approx(ITEM_SECONDS)
    for outcomes in (one, three):
        pictures, text = outcomes
        assert pictures.first is not None
        assert pictures.encoded is not None
        assert pictures.first > pictures.encoded
        assert text.encoded is None
        assert text.ttft is not None
        assert text.ttft < ITEM_SECONDS


def test_calls_wait_for_their_turn_when_their_media_are_encoded() -> None:
    """Both are encoded at the same time, and have the one place at prefill one after the other."""
    picture = TraceCall(0.0, 2000, 11, (), media=1)
    limits = Limits(prefill_concurrency=1)
    plan = replace(PLAN, encoders=2, item_seconds=ITEM_SECONDS, limits=limits, prefills=1)

    first, second = run(plan, [picture, picture]).outcomes

    assert (first.began, first.encoded, second.encoded) == (ITEM_SECONDS,) * 3
    assert first.prefilled is not None
    assert second.began == pytest.approx(first.prefilled)


def test_without_engines_for_media_the_one_that_reads_encodes_them() -> None:
    pictures, text = encoded_by(0).outcomes

    assert (pictures.encoded, text.encoded) == (None, None)
    assert pictures.ttft is not None
    assert 3 * ITEM_SECONDS < pictures.ttft < 4 * ITEM_SECONDS


def test_an_encode_engine_that_dies_is_replaced() -> None:
    pictures, _ = encoded_by(2, Outage("e0", 0.25)).outcomes

    assert (pictures.why, pictures.attempts) == ("", 2)
    # The other had its own first.
    assert pictures.encoded is not None
    assert pictures.encoded > 3 * ITEM_SECONDS


def test_with_no_encode_engine_left_a_call_with_media_is_lost_and_one_without_is_not() -> None:
    pictures, text = encoded_by(1, Outage("e0", 0.25)).outcomes

    assert (pictures.why, text.why) == ("no engine", "")
