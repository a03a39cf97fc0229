import pytest

from pdgate.protocols.instance import Role
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.policies.least_latency import least_latency
from pdgate.scheduling.policy_context import PolicyContext
from tests.support.fleets import Known, fleet, holding, prompt


def reads(endpoint: Endpoint, tokens_per_second: int) -> Endpoint:
    """It has shown that it reads so fast."""
    for tokens in (1_000, 2_000, 4_000, 8_000):
        endpoint.latency.prefill_rate.learn(tokens, tokens / tokens_per_second)
    return endpoint


def test_a_faster_engine_may_have_more_to_read() -> None:
    fast, slow = fleet(2)
    reads(fast, 20_000).unread_tokens = 10_000
    reads(slow, 5_000).unread_tokens = 4_000

    assert least_latency(PolicyContext(Role.PREFILL)).choose(prompt(1_000), [fast, slow]) is fast


def test_what_is_cached_need_not_be_waited_for() -> None:
    """Nine tenths of 10,000 tokens are worth a queue of 8,000, and not one of 10,000."""
    context = PolicyContext(Role.PREFILL, prefixes=Known({"0": 9_000}))
    cached, other = reads(fleet(2)[0], 10_000), reads(fleet(2)[1], 10_000)

    cached.unread_tokens = 8_000
    assert least_latency(context).choose(prompt(10_000), [cached, other]) is cached
    cached.unread_tokens = 10_000
    assert least_latency(context).choose(prompt(10_000), [cached, other]) is other


@pytest.mark.parametrize("role", list(Role))
def test_before_anything_is_known_the_load_decides(role: Role) -> None:
    busy, idle = fleet(2, role)
    busy.calls, busy.tokens, busy.unread_tokens = 2, 20_000, 20_000

    assert least_latency(PolicyContext(role)).choose(prompt(100), [busy, idle]) is idle


def test_an_engine_without_room_is_left_out() -> None:
    """It is idle, but its memory is full of what others know."""
    full, busy = fleet(2, Role.DECODE)
    holding(full, 10)
    holding(busy, 1_000_000).tokens = 500_000

    assert least_latency(PolicyContext(Role.DECODE)).choose(prompt(100), [full, busy]) is busy
