from random import Random

from pdgate.protocols.instance import Role
from pdgate.scheduling.candidate import Candidate
from pdgate.scheduling.policies.least_loaded import LeastLoaded
from pdgate.scheduling.policies.on_time import OnTime, on_time
from pdgate.scheduling.surroundings import Surroundings, Targets
from tests.support.fleets import Known, fleet, prompt

TARGETS = Targets(ttft_seconds=2.0)


def reading(count: int = 3) -> list[Candidate]:
    """They read 10,000 tokens a second."""
    among = fleet(count)
    for one in among:
        for tokens in (1_000, 2_000, 4_000, 8_000):
            one.predicts.reading.learn(tokens, tokens / 10_000)
    return among


def made(known: Known | None = None, seed: int = 0) -> OnTime:
    policy = on_time(Surroundings(Role.PREFILL, known, TARGETS, random=Random(seed)))
    assert isinstance(policy, OnTime)
    return policy


def test_an_idle_fleet_is_used_evenly() -> None:
    among, policy = reading(), made()

    assert len({policy.choose(prompt(100), among).instance.id for _ in range(30)}) == 3


def test_the_shortest_wait_wins_where_nobody_has_the_prompt() -> None:
    among = reading()
    for one, unread in zip(among, (5_000, 2_000, 9_000), strict=True):
        one.unread_tokens = unread

    assert made().choose(prompt(4_000), among) is among[1]


def test_a_cached_prompt_is_worth_twice_the_time_that_it_saves() -> None:
    among, policy = reading(2), made(Known({"1": 3_000}))
    among[1].unread_tokens = 5_900
    assert policy.choose(prompt(4_000), among) is among[1]

    among[1].unread_tokens = 6_100
    assert policy.choose(prompt(4_000), among) is among[0]


def test_in_overload_a_call_that_will_be_late_goes_where_calls_are_late() -> None:
    among = reading()
    for one, unread in zip(among, (15_000, 90_000, 16_000), strict=True):
        one.unread_tokens = unread
    policy = made()

    assert policy.choose(prompt(4_000), among) is among[1]
    assert policy.choose(prompt(1_000), among) is among[0]


def test_a_prompt_that_takes_too_long_by_itself_is_no_overload() -> None:
    among = reading()
    for one, unread in zip(among, (3_000, 5_000, 4_000), strict=True):
        one.unread_tokens = unread

    assert made().choose(prompt(100_000), among) is among[0]


def test_what_nobody_has_shown_yet_goes_by_what_is_to_be_read() -> None:
    among = fleet(2)
    among[0].unread_tokens = 500

    assert made().choose(prompt(1_000), among) is among[1]


def test_decode_is_chosen_by_load() -> None:
    assert isinstance(on_time(Surroundings(Role.DECODE)), LeastLoaded)
