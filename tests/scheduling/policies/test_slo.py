from collections import Counter
from random import Random

import pytest

from pdgate.protocols.instance import Role
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.pipeline import Pipeline
from pdgate.scheduling.policies.slo import InTime, slo
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.policy_context import PolicyContext, Targets
from pdgate.scheduling.status import Beyond
from tests.support.fleets import Known, fleet, prompt

TARGETS = Targets(ttft_seconds=2.0, tpot_seconds=0.05)


def reading(count: int = 3) -> list[Endpoint]:
    """They read 10,000 tokens a second."""
    among = fleet(count)
    for one in among:
        for tokens in (1_000, 2_000, 4_000, 8_000):
            one.latency.prefill_rate.learn(tokens, tokens / 10_000)
    return among


def made(role: Role, known: Known | None = None) -> Pipeline | InTime:
    policy = slo(PolicyContext(role, known, TARGETS, Random(1)))
    assert isinstance(policy, Pipeline | InTime)
    return policy


def test_a_cached_prompt_is_worth_a_wait_that_is_no_longer_than_twice_what_it_saves() -> None:
    """It takes longer until this call's first token, and leaves the others' engines alone; costs that differ by a twentieth are equal."""
    among, policy = reading(), made(Role.PREFILL, Known({"1": 3_600}))

    among[1].unread_tokens = 6_000
    assert policy.choose(prompt(4_000), among) is among[1]
    among[1].unread_tokens = 9_000
    assert policy.choose(prompt(4_000), among) is not among[1]


def test_calls_that_all_begin_alike_do_not_queue_where_one_was_first() -> None:
    """A short prompt that is cached is not worth to wait for long ones, be it in time or not."""
    among, policy = reading(), made(Role.PREFILL, Known({"1": 300}))
    among[1].unread_tokens = 4_000

    assert policy.choose(prompt(300), among) is not among[1]


def test_what_was_seen_of_equals_does_not_make_one_of_them_the_busy_one() -> None:
    """An idle fleet, of which each call is over before the next one comes."""
    among, policy, chosen = reading(), made(Role.PREFILL), Counter[str]()
    among[1].latency.prefill_rate.learn(4_000, 0.39)
    for _ in range(300):
        chosen[policy.choose(prompt(50), among).instance.id] += 1

    assert min(chosen[one.instance.id] for one in among) > 60


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE, Role.PLAIN])
def test_a_burst_on_a_fleet_of_which_nothing_is_known_is_spread_evenly(role: Role) -> None:
    among = fleet(8, role)
    policy = made(role)
    for _ in range(80):
        one = policy.choose(prompt(50), among)
        one.calls += 1
        one.tokens += 50
        one.unread_tokens += 50

    assert {one.calls for one in among} == {10}


def test_calls_that_others_sent_count_among_equals() -> None:
    """What an engine says of its load, beyond our account of it."""
    among = fleet(3)
    for one in among[:2]:
        one.beyond = Beyond(calls=3)

    assert made(Role.PREFILL).choose(prompt(50), among) is among[2]


def test_an_engine_that_reads_faster_gets_more() -> None:
    among = fleet(2)
    for one, speed in zip(among, (10_000, 30_000), strict=True):
        for tokens in (1_000, 2_000, 4_000, 8_000):
            one.latency.prefill_rate.learn(tokens, tokens / speed)
    policy = made(Role.PREFILL)
    for _ in range(8):
        policy.choose(prompt(2_000), among).unread_tokens += 2_000

    assert 0 < among[0].unread_tokens <= 4_000


def test_a_cached_prompt_is_not_worth_to_miss_the_target() -> None:
    among = reading()
    among[1].unread_tokens = 22_000

    chosen = made(Role.PREFILL, Known({"1": 3_600})).choose(prompt(4_000), among)

    assert chosen is not among[1]


def test_a_call_that_will_be_late_joins_those_that_are() -> None:
    """So that it makes no others late; and it is counted."""
    among = reading()
    for one in among:
        one.unread_tokens = 80_000
    among[2].unread_tokens = 90_000
    policy = made(Role.PREFILL)

    assert policy.choose(prompt(4_000), among) is among[2]
    assert policy.passed_over == {"first_token_in_time": 1}


def test_under_overload_most_engines_stay_in_time() -> None:
    """A third more comes than can be read; each engine reads 10,000 tokens a second."""
    among, policy, in_time = reading(8), made(Role.PREFILL), 0

    for number in range(2_000):
        chosen = policy.choose(prompt(4_000), among)
        in_time += chosen.unread_tokens + 4_000 <= 20_000
        chosen.unread_tokens += 4_000
        if number % 8 == 7:
            for one in among:
                one.unread_tokens = max(0, one.unread_tokens - 3_000)

    assert in_time / 2_000 > 0.4


def test_decode_takes_who_has_least_in_flight() -> None:
    busy, idle = fleet(2, Role.DECODE)
    busy.calls, busy.tokens = 3, 30_000

    assert made(Role.DECODE).choose(prompt(4_000), [busy, idle]) is idle


def test_it_is_a_policy_also_after_it_was_found_to_be_no_pipeline() -> None:
    """Compiled classes have the cache of their base for such questions (tools/compiled.py)."""
    policy = made(Role.PREFILL)

    assert not isinstance(policy, Pipeline)
    assert isinstance(policy, Policy)


def test_what_a_call_has_waited_in_the_gateway_is_off_its_time() -> None:
    """An engine that has most of its prompt is worth no wait that makes it late."""
    among, policy = reading(), made(Role.PREFILL, Known({"1": 3_600}))
    among[1].unread_tokens = 6_000

    assert policy.choose(prompt(4_000), among) is among[1]
    assert policy.choose(prompt(4_000).begun(1.2), among) is not among[1]


def test_a_late_call_that_has_waited_goes_where_it_is_soonest() -> None:
    """In the gateway those that can be in time have gone before it; one that has not waited joins the late ones."""
    among, policy = reading(), made(Role.PREFILL)
    for one, tokens in zip(among, (30_000, 3_000, 5_000), strict=True):
        one.unread_tokens = tokens
    late = prompt(20_000)

    assert policy.choose(late.begun(3.0), among) is among[1]
    assert policy.choose(late, among) is among[0]
