"""Which calls are worth splitting, by rules that measure nothing."""

from dataclasses import replace

import msgspec
import pytest

from pdgate.protocols.call import Call
from pdgate.protocols.instance import Role
from pdgate.scheduling.account import Account, told
from pdgate.scheduling.disaggregation import (
    Always,
    Auto,
    Decision,
    Never,
    SplitRule,
    Taken,
    UncachedTokensAbove,
)
from pdgate.scheduling.disaggregation.decision import (
    LONG_PROMPT,
    NEVER,
    ONE_TOKEN,
    PREFILL_IS_BUSY,
    SHORT_PROMPT,
)
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.policies.round_robin import RoundRobin
from pdgate.scheduling.scheduler import Scheduler
from pdgate.scheduling.status import Status
from tests.support.scripted import D0, D1, P0, chat, fleet


def prompt_of(tokens: int) -> Call:
    return msgspec.structs.replace(chat(), prompt_tokens=tokens)


def engines(rule: SplitRule) -> Scheduler:
    return Scheduler(fleet(P0, D0), RoundRobin(), RoundRobin(), RoundRobin(), rule)


def decided(rule: SplitRule, call: Call, *, prefill_can_answer: bool = False) -> Decision:
    scheduler = engines(rule)
    with scheduler.reserve(Role.PREFILL, call) as prefill:
        return scheduler.decide(call, prefill, prefill_can_answer=prefill_can_answer)


@pytest.mark.parametrize(("tokens", "calls"), [(0, 1), (100_000, 1000)])
def test_always_and_never_ask_nothing(tokens: int, calls: int) -> None:
    asked = prompt_of(tokens), Endpoint(P0, calls=calls), [Endpoint(D0)]

    assert Always().decide(*asked).taken is Taken.SPLIT
    assert Never().decide(*asked).taken is Taken.LOCAL
    assert decided(Always(), prompt_of(tokens)).taken is Taken.SPLIT
    assert decided(Never(), prompt_of(tokens)).taken is Taken.LOCAL


def test_a_rule_that_is_fixed_says_what_it_would_decide() -> None:
    for rule in (Always(), Never()):
        assert rule.fixed is rule.decide(chat(), Endpoint(P0), [Endpoint(D0)])


def test_a_rule_that_looks_at_calls_is_not_fixed() -> None:
    for rule in (Auto(UncachedTokensAbove()), UncachedTokensAbove()):
        assert rule.fixed is None


@pytest.mark.parametrize(
    ("tokens", "other_calls", "taken", "reason"),
    [
        (1000, 0, Taken.LOCAL, SHORT_PROMPT),
        (1001, 0, Taken.SPLIT, LONG_PROMPT),
        (1001, 1, Taken.SPLIT, LONG_PROMPT),
        (1001, 2, Taken.LOCAL, PREFILL_IS_BUSY),
        (1000, 2, Taken.LOCAL, SHORT_PROMPT),
    ],
)
def test_a_long_prompt_is_split_while_prefill_is_free(
    tokens: int, other_calls: int, taken: Taken, reason: str
) -> None:
    rule = UncachedTokensAbove(tokens=1000, max_prefill_calls=2)

    decision = rule.decide(prompt_of(tokens), Endpoint(P0, calls=other_calls + 1), [])

    assert (decision.taken, decision.reason) == (taken, reason)


def test_the_call_itself_does_not_make_prefill_busy() -> None:
    scheduler = engines(UncachedTokensAbove(tokens=0, max_prefill_calls=1))

    with scheduler.reserve(Role.PREFILL, chat()) as first:
        assert scheduler.decide(chat(), first).taken is Taken.SPLIT
        with scheduler.reserve(Role.PREFILL, chat()) as second:
            assert scheduler.decide(chat(), second).reason == PREFILL_IS_BUSY


def test_what_others_have_at_prefill_makes_it_busy() -> None:
    """Clients of the engine itself, other gateways, and its share of a prefill queue."""
    rule = UncachedTokensAbove(tokens=0, max_prefill_calls=2)
    prefill = Endpoint(P0, calls=1)
    for status, reason in (
        (Status(running=2, waiting=0), LONG_PROMPT),
        (Status(running=2, waiting=1), PREFILL_IS_BUSY),
        (Status(running=1, waiting=0, queue_share=2), PREFILL_IS_BUSY),
    ):
        told(prefill, status, Account.of(prefill))

        assert rule.decide(prompt_of(5000), prefill, []).reason == reason


CACHED = {"d0": 900, "d1": 4500}


@pytest.mark.parametrize(
    ("uncached", "among"),
    [(100, ()), (500, ("d1",)), (4100, ("d0", "d1")), (5000, ())],
)
def test_a_prompt_is_as_long_as_what_decode_has_not_cached_of_it(
    uncached: int, among: tuple[str, ...]
) -> None:
    """And the call goes to a decode engine for which that is so."""
    rule = UncachedTokensAbove(tokens=uncached)

    decision = rule.decide(prompt_of(5000), Endpoint(P0), [Endpoint(D0), Endpoint(D1)], CACHED)

    assert decision.taken is (Taken.SPLIT if uncached == 100 else Taken.LOCAL)
    assert decision.among == among


@pytest.mark.parametrize(
    ("role", "sides", "among"),
    [
        (Role.BOTH, None, ("p0", "d1")),
        # It is to answer no calls now, or cannot.
        (Role.BOTH, frozenset({Role.PREFILL}), ("d1",)),
        (Role.PREFILL, None, ("d1",)),
    ],
)
def test_what_an_engine_of_both_roles_has_cached_is_cached_at_decode(
    role: Role, sides: frozenset[Role] | None, among: tuple[str, ...]
) -> None:
    """It was chosen to read the prompt as it has most of it, and may keep the call for that."""
    prefill = Endpoint(replace(P0, role=role), sides=sides)
    rule = UncachedTokensAbove(tokens=1000)

    decision = rule.decide(
        prompt_of(5000), prefill, [Endpoint(D0), Endpoint(D1)], {"p0": 4500, **CACHED}
    )

    assert (decision.reason, decision.among) == (SHORT_PROMPT, among)


def test_one_token_stays_on_prefill_unless_prefill_is_never_asked() -> None:
    for rule, reason in ((Always(), ONE_TOKEN), (Never(), NEVER)):
        assert decided(rule, chat(), prefill_can_answer=True).reason == reason


def test_another_rule_counts_from_the_next_call_on() -> None:
    scheduler = engines(Always())

    scheduler.rule = Never()

    with scheduler.reserve(Role.PREFILL, chat()) as prefill:
        assert scheduler.decide(chat(), prefill).taken is Taken.LOCAL
