from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.account import Account, told
from pdgate.scheduling.admission import Limits, Room
from pdgate.scheduling.admission.giving_way import (
    MOST_LOOKED_AT,
    RunningCall,
    looked_at,
    may_give_way,
    raised,
    who_gives_way,
    would_be_late,
)
from pdgate.scheduling.admission.others import NOTHING_SAID, OtherProcesses
from pdgate.scheduling.eligible import EligibleSet
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.latency.model import TOKENS_PER_SECOND
from pdgate.scheduling.neighbours import SharedEndpoint
from pdgate.scheduling.policy_context import Targets
from pdgate.scheduling.status import Status

ORDINARY = 3
READ_A_SECOND = int(TOKENS_PER_SECOND)


def engine(name: str, role: Role, calls: int = 0, unread: int = 0) -> Endpoint:
    endpoint = Endpoint(Instance(name, "http://127.0.0.1:1", role, "vllm-nixl"), up=True)
    endpoint.calls, endpoint.unread_tokens = calls, unread
    return endpoint


def pairs(prefill: Sequence[Endpoint], decode: Sequence[Endpoint]) -> EligibleSet:
    return EligibleSet(
        {Role.PREFILL: prefill, Role.DECODE: decode, Role.PLAIN: []}, disaggregated=True
    )


P, D = engine("p", Role.PREFILL), engine("d", Role.DECODE)


def low(urgency: int = 7, **more: Any) -> RunningCall:
    return RunningCall(urgency, **{"answering": "d", "tokens": 100, **more})


def chosen(limits: Limits, running: Sequence[RunningCall], **more: Any) -> list[RunningCall]:
    asked: dict[str, Any] = {
        "eligible": pairs([P], [D]),
        "urgency": ORDINARY,
        "begun": len(running),
    } | more
    return who_gives_way(limits, running=running, **asked)


def test_one_gives_way_for_each_place_that_is_missing() -> None:
    some = [low(), low(), low()]
    limits = Limits(decode_concurrency=3, give_way=1)

    assert chosen(limits, some) == some[:1]
    assert chosen(limits, some, begun=4) == some[:2]
    assert chosen(limits, some, others=OtherProcesses(begun=1)) == some[:2]
    assert chosen(limits, some, begun=2) == []


def test_what_workers_have_by_other_models_takes_places_as_well() -> None:
    decode = engine("d", Role.DECODE, calls=1)
    shared = SharedEndpoint.of(decode)
    shared.take_in(decode, shared.near, 3, 300, 0, 3)
    limits, some, asked = Limits(decode_concurrency=4, give_way=1), [low()], pairs([P], [decode])

    assert not Room(limits).for_one_more(asked, 1, 0, NOTHING_SAID)
    assert chosen(limits, some, eligible=asked, others=NOTHING_SAID) == some


def test_what_ends_at_an_engine_that_gets_no_more_calls_leaves_no_place() -> None:
    old = engine("old", Role.DECODE, calls=1)
    some, eligible = [low(answering="old"), low()], replace(pairs([P], [D]), leaving=[old])
    limits = Limits(decode_concurrency=1, give_way=1)

    assert chosen(limits, some, eligible=eligible) == some[1:]
    assert chosen(limits, some[:1], eligible=eligible, begun=2) == []


def test_calls_give_way_though_an_engine_that_is_on_its_way_back_has_room() -> None:
    p, back = engine("p", Role.PREFILL, calls=1), engine("back", Role.DECODE, calls=1)
    back.returned = 1.0
    eligible = replace(pairs([p], [D, back]), careful=True)
    limits, some = Limits(decode_concurrency=1, give_way=1), [low(answering="back"), low()]
    assert chosen(limits, some, eligible=eligible) == some[1:]

    also = engine("also", Role.PREFILL)
    also.returned = 1.0
    limits, some = Limits(prefill_concurrency=1, give_way=1), [low(reading="p", answering="")]
    assert chosen(limits, some, eligible=replace(pairs([p, also], [D]), careful=True)) == some


def test_answers_of_an_engine_of_both_roles_give_no_way_to_a_prompt() -> None:
    one, other = (engine(name, Role.BOTH, calls=3) for name in ("a", "b"))
    one.prefills, other.prefills = 1, 1
    eligible, limits = pairs([one, other], [one, other]), Limits(prefill_concurrency=1, give_way=1)
    reads = low(reading="a", answering="b", unread_tokens=9, reads_for=5.0)
    whole = low(reading="a", answering="a", unread_tokens=9)

    assert chosen(limits, [low(answering="a"), whole, reads], eligible=eligible) == [reads]
    assert chosen(limits, [low(answering="a"), whole], eligible=eligible) == []
    other.prefills = 0
    assert chosen(limits, [reads], eligible=eligible) == []


def test_the_least_urgent_goes_first_then_who_has_given_way_least_then_the_smallest() -> None:
    least, once = low(7, gave_way=1), low(6, gave_way=1)
    large, small = low(6, tokens=9), low(6, tokens=5)
    limits = Limits(decode_concurrency=1, give_way=2)
    running = [once, large, small, least]
    order: list[RunningCall] = []
    while found := chosen(limits, running, begun=1):
        order += found
        running = [one for one in running if one not in found]

    assert order == [least, small, large, once]


def test_no_call_gives_way_to_what_is_not_more_urgent_or_more_often_than_it_may() -> None:
    limits = Limits(decode_concurrency=1, give_way=2)

    assert chosen(limits, [low(5)], urgency=5) == []
    assert chosen(limits, [low(5, gave_way=2)]) == []
    assert chosen(Limits(decode_concurrency=1), [low(7)]) == []
    assert [may_give_way(urgency) for urgency in (0, 3, 4, 7)] == [False, False, True, True]


def test_all_that_run_are_looked_at_in_a_few_decisions_the_least_urgent_first() -> None:
    running = [range(200), range(200, 700)]
    begin, seen = 0, list[int]()
    for _ in range(3):
        some, begin = looked_at(running, begin)
        assert len(some) == MOST_LOOKED_AT
        seen += some

    assert seen == [*range(700), *range(3 * MOST_LOOKED_AT - 700)]
    assert looked_at([range(9), range(9, 20)], begin) == ([*range(20)], 0)
    # Some have ended since.
    assert looked_at(running[1:], 600)[0][0] == 300


def test_what_makes_no_room_ends_nothing() -> None:
    limits = Limits(decode_concurrency=1, prefill_concurrency=1, give_way=1)
    busy = pairs([engine("p", Role.PREFILL, calls=1)], [D])

    # A place at decode could be had, and none at prefill.
    assert chosen(limits, [low()], eligible=busy) == []
    assert chosen(limits, [low(reading="p")], eligible=busy, begun=1) != []


def test_of_those_that_are_read_as_many_end_as_it_takes_at_one_engine() -> None:
    def reads(at: str, seconds: float) -> RunningCall:
        return low(reading=at, unread_tokens=int(seconds * READ_A_SECOND), answering="")

    slow = engine("slow", Role.PREFILL, calls=3, unread=9 * READ_A_SECOND)
    quick = engine("quick", Role.PREFILL, calls=2, unread=3 * READ_A_SECOND)
    running = [reads("slow", 4), reads("slow", 4), reads("quick", 2.5)]
    limits = Limits(prefill_seconds=1, give_way=1)

    assert chosen(limits, running, eligible=pairs([slow, quick], [D])) == running[2:]
    assert chosen(limits, running[:2], eligible=pairs([slow], [D])) == []
    assert chosen(limits, [*running[:2], reads("slow", 0.5)], eligible=pairs([slow], [D])) != []


def test_of_those_that_are_read_the_newest_goes_first_and_none_that_may_be_half_read() -> None:
    reader = engine("p", Role.PREFILL, calls=2)
    for _ in range(5):
        reader.latency.has_read(1000, 1_000_000, 2.0, None)
    new, old, half = (
        low(reading="p", unread_tokens=1000, reads_for=seconds) for seconds in (0.1, 0.9, 1.9)
    )
    limits, eligible = Limits(prefill_concurrency=2, give_way=1), pairs([reader], [D])

    assert chosen(limits, [half, old, new], eligible=eligible) == [new]
    assert chosen(limits, [half, old], eligible=eligible) == [old]
    assert chosen(limits, [half], eligible=eligible) == []


def test_calls_end_at_the_decode_engine_whose_steps_get_short_enough_soonest() -> None:
    def decodes(name: str, calls: int) -> Endpoint:
        found = engine(name, Role.DECODE, calls)
        for batch in range(1, 65):
            found.latency.says(0.01 * batch, batch, 0)
        return found

    at_a, at_b = [low(answering="a") for _ in range(8)], [low(answering="b") for _ in range(8)]
    eligible = pairs([P], [decodes("a", 20), decodes("b", 13)])
    limits = Limits(step_seconds=0.105, give_way=1)

    found = chosen(limits, [*at_a, *at_b], eligible=eligible)

    assert {one.answering for one in found} == {"b"}
    assert 3 <= len(found) <= 5


def test_pages_are_asked_for_once_until_the_engine_says_how_many_it_has() -> None:
    full = engine("d", Role.DECODE)
    told(full, Status(kv_free=0.01, kv_tokens=1000), Account.of(full))
    some = [low(tokens=60), low(tokens=60)]
    limits, eligible = Limits(kv_free=0.1, give_way=1), pairs([P], [full])

    assert chosen(limits, some, eligible=eligible) == some
    assert chosen(limits, [low(tokens=60)], eligible=eligible) == []
    assert chosen(limits, some, eligible=eligible, freed={"d": full.status}) == []
    told(full, Status(kv_free=0.02, kv_tokens=1000), Account.of(full))
    assert chosen(limits, some, eligible=eligible, freed={"d": Status()}) != []


def test_a_plain_engine_reads_and_answers() -> None:
    plain = engine("one", Role.PLAIN, calls=1, unread=3 * READ_A_SECOND)
    eligible = EligibleSet(
        {Role.PREFILL: [], Role.DECODE: [], Role.PLAIN: [plain]}, disaggregated=False
    )
    reads = low(reading="one", answering="one", unread_tokens=3 * READ_A_SECOND)
    limits = Limits(prefill_seconds=1, decode_concurrency=1, prefill_concurrency=1, give_way=1)

    assert chosen(limits, [reads], eligible=eligible) == [reads]


@pytest.mark.parametrize(
    ("waited", "expected", "late"),
    [(0, None, True), (0, 0.5, False), (0, 6.0, True), (4.5, 0.5, True), (0, 3.0, False)],
)
def test_a_call_is_late_when_its_wait_and_its_reading_take_it_past_the_target(
    waited: float, expected: float | None, late: bool
) -> None:
    limits = Limits(decode_concurrency=1, give_way=1).in_gateway(Targets(ttft_seconds=5))

    assert would_be_late(limits, pairs([P], [D]), 10, waited, expected) is late


def test_waiting_makes_a_call_more_urgent() -> None:
    assert [raised(7, seconds) for seconds in (0, 29, 30, 61, 1e6)] == [7, 7, 6, 5, 0]


def test_without_a_limit_calls_wait_for_prefill_where_others_give_way() -> None:
    targets = Targets(ttft_seconds=5, tpot_seconds=0.1)

    assert not Limits().in_gateway(targets).any
    assert Limits(give_way=1).in_gateway(targets).prefill_seconds == 1
    assert Limits(give_way=1, decode_concurrency=2).in_gateway(targets).prefill_seconds is None
