"""Where calls go that cannot be in time: together, and no more of them than there are such calls."""

from collections import Counter
from random import Random

from pdgate.protocols.instance import Role
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.policies.slo import LateTogether
from pdgate.scheduling.policy_context import PolicyContext, Targets
from tests.support.fleets import Known, fleet, prompt

TARGETS = Targets(ttft_seconds=2.0)


def around(known: Known | None = None) -> PolicyContext:
    return PolicyContext(Role.PREFILL, known, TARGETS, Random(1))


def reading(*waiting: int) -> list[Endpoint]:
    """Each reads 10,000 tokens a second, and has so many to read."""
    among = fleet(len(waiting))
    for one, tokens in zip(among, waiting, strict=True):
        for size in (1_000, 2_000, 4_000, 8_000):
            one.latency.prefill_rate.learn(size, size / 10_000)
        one.unread_tokens = tokens
    return among


def test_a_late_call_takes_the_soonest_of_those_who_have_most_to_read() -> None:
    """Three of eight may be late; the idle ones stay for calls that can be in time."""
    among = reading(0, 0, 0, 0, 0, 60_000, 50_000, 70_000)
    late, call = LateTogether(around()), prompt(9_000)
    late.came(9_000)

    assert late.choose(call, among) is among[6]


def test_a_single_engine_takes_all_that_is_late() -> None:
    among = reading(90_000)

    assert LateTogether(around()).choose(prompt(9_000), among) is among[0]


def test_nobody_waits_for_more_than_sixty_targets_so_that_others_need_not() -> None:
    """Then one more engine is for late calls: that which has most to read of the others."""
    among = reading(0, 0, 0, 0, 9_000, 1_250_000, 1_260_000, 1_270_000)
    late, call = LateTogether(around()), prompt(9_000)

    assert late.choose(call, among) is among[4]
    among[5].unread_tokens = 1_150_000
    assert late.choose(call, among) is among[5]


def test_a_late_call_is_overtaken_only_by_so_much_if_all_wait_long() -> None:
    """What everybody waits is nobody's preference."""
    among = reading(2_000_000, 2_000_000, 2_900_000)

    assert LateTogether(around()).choose(prompt(9_000), among) is among[2]


def drawn(late: LateTogether, tokens: int, cached: int = 0) -> Counter[str]:
    """A hundred such calls, none of which ends: who got how many."""
    among, chosen = reading(*[0] * 8), Counter[str]()
    for _ in range(100):
        call = prompt(tokens)
        late.came(tokens - cached)
        one = late.choose(call, among)
        one.unread_tokens += tokens
        chosen[one.instance.id] += 1
    return chosen


def test_where_all_prompts_are_too_long_to_be_in_time_all_engines_read_them() -> None:
    """Nobody is to be protected from them, so none may stay idle."""
    assert len(drawn(LateTogether(around()), 30_000)) == 8


def test_calls_that_only_wait_too_long_never_get_more_than_a_minority() -> None:
    assert len(drawn(LateTogether(around()), 10_000)) == 3


def test_a_cached_prompt_is_not_too_long() -> None:
    """What is read of it counts."""
    late = LateTogether(around(Known({"0": 25_000})))

    assert len(drawn(late, 30_000, cached=25_000)) == 3
