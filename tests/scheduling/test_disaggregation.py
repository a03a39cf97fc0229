"""Which calls are worth splitting."""

import pytest

from pdgate.protocols.instance import Role
from pdgate.scheduling.disaggregation import (
    NEVER,
    PREFILL_IS_BUSY,
    SHORT_PROMPT,
    Always,
    Never,
    UncachedTokensAbove,
)
from pdgate.scheduling.policies.round_robin import RoundRobin
from pdgate.scheduling.scheduler import Scheduler
from tests.support.scripted import D0, P0, chat, fleet


@pytest.mark.parametrize(("tokens", "calls"), [(0, 0), (100_000, 1000)])
def test_always_and_never_ask_nothing(tokens: int, calls: int) -> None:
    assert Always().why_not(tokens, calls) is None
    assert Never().why_not(tokens, calls) == NEVER


@pytest.mark.parametrize(
    ("tokens", "calls", "why_not"),
    [
        (1000, 0, SHORT_PROMPT),
        (1001, 0, None),
        (1001, 1, None),
        (1001, 2, PREFILL_IS_BUSY),
        (1000, 2, SHORT_PROMPT),
    ],
)
def test_a_long_prompt_is_split_while_prefill_is_free(
    tokens: int, calls: int, why_not: str | None
) -> None:
    rule = UncachedTokensAbove(tokens=1000, max_prefill_calls=2)

    assert rule.why_not(tokens, calls) == why_not


def test_the_call_itself_does_not_make_prefill_busy() -> None:
    policy = RoundRobin()
    rule = UncachedTokensAbove(tokens=0, max_prefill_calls=1)
    scheduler = Scheduler(fleet(P0, D0), policy, policy, policy, rule)

    with scheduler.reserve(Role.PREFILL, chat()):
        assert scheduler.why_local(chat(), P0) is None
        with scheduler.reserve(Role.PREFILL, chat()):
            assert scheduler.why_local(chat(), P0) == PREFILL_IS_BUSY
