from pdgate.protocols.instance import Role
from pdgate.scheduling.policies.lmetric import LMetric
from pdgate.scheduling.policy_context import PolicyContext
from tests.support.fleets import Known, fleet, prompt


def test_a_cached_prompt_outweighs_calls_by_as_much_as_it_saves() -> None:
    """A tenth of 10,000 tokens are to be read there: nine other calls weigh as much."""
    policy = LMetric(PolicyContext(Role.PREFILL, prefixes=Known({"0": 9_000})))
    cached, other = fleet(2)

    cached.calls = 8
    assert policy.choose(prompt(10_000), [cached, other]) is cached
    cached.calls = 10
    assert policy.choose(prompt(10_000), [cached, other]) is other


def test_what_waits_to_be_read_counts_like_the_prompt() -> None:
    policy = LMetric(PolicyContext(Role.PREFILL))
    waits, busy = fleet(2)
    waits.calls = busy.calls = 1

    waits.unread_tokens = 500
    assert policy.choose(prompt(1_000), [waits, busy]) is busy


def test_decode_gets_the_call_where_fewest_are() -> None:
    """Whatever is cached there: decode is handed the KV."""
    policy = LMetric(PolicyContext(Role.DECODE, prefixes=Known({"0": 9_000})))
    cached, other = fleet(2)
    cached.calls = 1

    assert policy.choose(prompt(10_000), [cached, other]) is other
