from pdgate.protocols.instance import Role
from pdgate.scheduling.policies.projected_kv import projected_kv
from pdgate.scheduling.policy_context import PolicyContext
from tests.support.fleets import fleet, holding, prompt

AROUND = PolicyContext(Role.DECODE)


def test_who_has_most_memory_left_is_chosen() -> None:
    """By its share, as engines have memories of different sizes."""
    large, small = fleet(2, Role.DECODE)
    holding(large, 100_000).tokens = 50_000
    holding(small, 10_000).tokens = 1_000

    assert projected_kv(AROUND).choose(prompt(1_000), [large, small]) is small


def test_the_call_itself_counts() -> None:
    """It would be most of the small engine's memory."""
    large, small = fleet(2, Role.DECODE)
    holding(large, 100_000).tokens = 50_000
    holding(small, 10_000).tokens = 1_000

    assert projected_kv(AROUND).choose(prompt(8_000), [large, small]) is large


def test_without_a_word_of_their_memory_tokens_in_flight_decide() -> None:
    busy, idle = fleet(2, Role.DECODE)
    busy.calls, busy.tokens = 1, 5_000
    idle.calls, idle.tokens = 3, 100

    assert projected_kv(AROUND).choose(prompt(100), [busy, idle]) is idle
