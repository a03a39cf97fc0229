import itertools
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.admission import NEVER, Limits, Room
from pdgate.scheduling.admission.others import OtherProcesses
from pdgate.scheduling.eligible import EligibleSet
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.neighbours import SharedEndpoint
from pdgate.scheduling.pipeline.scorers import waiting_seconds
from pdgate.scheduling.status import Beyond, Status


def engine(role: Role, calls: int = 0, kv_free: float | None = None) -> Endpoint:
    endpoint = Endpoint(Instance(role.value, "http://127.0.0.1:1", role, "vllm-nixl"))
    endpoint.calls = calls
    if kv_free is not None:
        endpoint.status = Status(kv_free=kv_free)
    return endpoint


def pairs(prefill: Sequence[int], decode: Sequence[float | None]) -> EligibleSet:
    """Calls at each prefill engine; free KV of each decode engine."""
    return EligibleSet(
        {
            Role.PREFILL: [engine(Role.PREFILL, calls) for calls in prefill],
            Role.DECODE: [engine(Role.DECODE, 0, free) for free in decode],
            Role.PLAIN: [],
        },
        disaggregated=True,
    )


def test_there_is_room_while_a_prefill_engine_has_fewer_calls_than_it_may() -> None:
    room = Room(Limits(prefill_concurrency=2))

    assert room.for_one_more(pairs([2, 1], [None]), begun=3, beginning=0)
    assert not room.for_one_more(pairs([2, 2], [None]), begun=4, beginning=0)


def test_each_replica_has_the_limits_for_itself() -> None:
    eligible = pairs([1], [None])
    (prefill,) = eligible.up[Role.PREFILL]
    shared = SharedEndpoint.of(prefill)
    shared.take_in(prefill, shared.far, 5, 500, 500, 0)
    room = Room(Limits(prefill_concurrency=2))

    assert room.for_one_more(eligible, begun=1, beginning=0)
    shared.take_in(prefill, shared.near, 1, 100, 100, 0)
    assert not room.for_one_more(eligible, begun=1, beginning=0)


def test_room_that_is_kept_for_others_is_none() -> None:
    room = Room(Limits(prefill_concurrency=2))

    assert not room.for_one_more(pairs([2, 1], [None]), begun=4, beginning=1)
    assert room.for_one_more(pairs([1, 1], [None]), begun=3, beginning=1)


def test_a_prefill_that_no_decode_engine_will_take_is_not_begun() -> None:
    room = Room(Limits(decode_concurrency=2))

    assert room.for_one_more(pairs([0], [None, None]), begun=3, beginning=0)
    assert not room.for_one_more(pairs([0], [None, None]), begun=4, beginning=0)


def test_nobody_begins_while_no_decode_engine_has_pages() -> None:
    room = Room(Limits(kv_free=0.1))

    assert room.for_one_more(pairs([0], [0.05, 0.2]), begun=9, beginning=0)
    assert not room.for_one_more(pairs([0], [0.05, 0.02]), begun=9, beginning=0)


def test_an_engine_that_does_not_say_what_it_has_is_taken_to_have_pages() -> None:
    assert Room(Limits(kv_free=0.1)).for_one_more(pairs([0], [0.05, None]), begun=9, beginning=0)


def test_without_engines_there_is_nothing_to_wait_for() -> None:
    limits = Limits(prefill_concurrency=1, decode_concurrency=1, kv_free=0.5)

    assert Room(limits).for_one_more(pairs([], []), begun=9, beginning=9)


def test_plain_engines_have_the_limits_of_decode_engines() -> None:
    plain = EligibleSet({Role.PREFILL: [], Role.DECODE: [], Role.PLAIN: [engine(Role.PLAIN)]})
    room = Room(Limits(prefill_concurrency=1, decode_concurrency=2))

    assert room.for_one_more(plain, begun=1, beginning=0)
    assert not room.for_one_more(plain, begun=2, beginning=0)


def test_several_processes_divide_the_places_to_wait_and_each_gets_one_at_least() -> None:
    limits = Limits(prefill_concurrency=1, decode_concurrency=10, waiting=5)

    assert limits.shared_by(4) == Limits(prefill_concurrency=1, decode_concurrency=10, waiting=2)
    assert limits.shared_by(8).waiting == 1


def test_what_other_processes_have_begun_takes_room_as_ours_does() -> None:
    room = Room(Limits(prefill_concurrency=2, decode_concurrency=2))
    eligible = pairs([1], [None, None])

    assert room.for_one_more(eligible, 1, 0, OtherProcesses(begun=2))
    assert not room.for_one_more(eligible, 1, 0, OtherProcesses(begun=3))
    assert not room.for_one_more(eligible, 1, 0, OtherProcesses(begun=2, beginning=1))


def leaving(*of_workers: int) -> Endpoint:
    """An engine that gets no more calls, with so many of ours, and of other workers."""
    decode = engine(Role.DECODE, of_workers[0])
    shared = SharedEndpoint.of(decode)
    shared.take_in(decode, shared.near, sum(of_workers[1:]), 0, 0, 0)
    return decode


def test_calls_at_engines_that_get_no_more_take_no_places() -> None:
    room, eligible = Room(Limits(decode_concurrency=2)), pairs([0], [None])

    assert not room.for_one_more(replace(eligible, leaving=[leaving(1)]), 3, 0)
    assert room.for_one_more(replace(eligible, leaving=[leaving(1), leaving(1)]), 3, 0)
    # Of another worker, too.
    eligible = replace(eligible, leaving=[leaving(1, 2)])
    assert room.for_one_more(eligible, 2, 0, OtherProcesses(begun=2))
    assert not room.for_one_more(eligible, 2, 0, OtherProcesses(begun=3))


def test_calls_of_other_models_at_engines_that_get_no_more_leave_no_places_to_ours() -> None:
    room, eligible = Room(Limits(decode_concurrency=2)), pairs([0], [None])
    (decode,) = eligible.up[Role.DECODE]
    decode.calls = 2

    assert not room.for_one_more(replace(eligible, leaving=[leaving(2)]), 2, 0)


def test_answers_of_an_engine_of_both_roles_take_no_places_of_prompts() -> None:
    """They take minutes, for which nobody's prompt was read."""
    eligible = pairs([], [])
    one, other = (engine(Role.BOTH, calls=4) for _ in range(2))
    eligible.up[Role.PREFILL] = eligible.up[Role.DECODE] = [one, other]
    room = Room(Limits(prefill_concurrency=2))

    assert room.for_one_more(eligible, 8, 0)
    one.prefills = other.prefills = 2
    assert not room.for_one_more(eligible, 8, 0)
    other.prefills = 1
    assert room.for_one_more(eligible, 8, 0)
    # A worker has its part, of what is read, too.
    shared = SharedEndpoint.of(one)
    one.prefills = 0
    shared.take_in(one, shared.near, 1, 0, 0, 0, 1)
    theirs = OtherProcesses(lines=1, since=100)
    assert room.for_one_more(eligible, 8, 0, theirs, since=200)
    other.prefills = 2
    assert not room.for_one_more(eligible, 8, 0, theirs, since=200)
    assert room.for_one_more(eligible, 8, 0, theirs, since=50)


LIMITS = [
    Limits(prefill, decode, kv_free)
    for prefill in (None, 1, 2)
    for decode in (None, 1, 2)
    for kv_free in (None, 0.1)
]
PLAIN_ONLY = EligibleSet({Role.PREFILL: [], Role.DECODE: [], Role.PLAIN: [engine(Role.PLAIN, 1)]})
ELIGIBLE_SETS = [
    pairs([0], [None]),
    pairs([1, 0], [0.05, None]),
    pairs([2, 2, 0], [0.05]),
    pairs([], []),
    PLAIN_ONLY,
    replace(pairs([0, 0], [None, None]), careful=True),
    replace(pairs([2, 1], [None, None, None]), careful=True),
]
for _eligible in ELIGIBLE_SETS[-2:]:
    for _role in (Role.PREFILL, Role.DECODE):
        _eligible.up[_role][0].returned = 1.0


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("eligible", ELIGIBLE_SETS)
def test_where_room_is_ample_there_is_room(limits: Limits, eligible: EligibleSet) -> None:
    """Whoever finds it so does not ask any further."""
    room = Room(limits)
    ample = room.ample(eligible)
    for begun, beginning in itertools.product(range(7), range(4)):
        if begun < ample.begun and ample.reader.calls + beginning < ample.reading:
            assert room.for_one_more(eligible, begun, beginning)


def test_room_is_ample_below_the_limits() -> None:
    split = Room(Limits(prefill_concurrency=2, decode_concurrency=3)).ample(
        pairs([1], [None, None])
    )
    plain = Room(Limits(prefill_concurrency=1, decode_concurrency=2)).ample(PLAIN_ONLY)

    assert (split.begun, split.reading, split.reader.calls) == (6, 2, 1)
    assert (plain.begun, plain.reading) == (2, sys.maxsize)


def test_room_is_never_ample_where_pages_count() -> None:
    assert Room(Limits(kv_free=0.1)).ample(pairs([0], [None])) is NEVER


def test_there_is_room_while_an_engine_has_little_to_read() -> None:
    """For one call at each such engine, as long as it is not known which one it takes."""
    eligible = pairs([0, 0], [None])
    first, second = eligible.up[Role.PREFILL]
    room = Room(Limits(prefill_seconds=1.0))

    first.unread_tokens = second.unread_tokens = 20_000
    assert not room.for_one_more(eligible, begun=2, beginning=0)
    second.unread_tokens = 5_000
    assert room.for_one_more(eligible, begun=2, beginning=0)
    assert not room.for_one_more(eligible, begun=2, beginning=1)


def test_room_at_any_of_a_thousand_engines_is_found_by_a_few_looks_at_some() -> None:
    eligible = pairs([0] * 1000, [None] * 1000)
    for engine in (*eligible.up[Role.PREFILL], *eligible.up[Role.DECODE]):
        engine.calls, engine.unread_tokens = 1, 20_000
        engine.latency.has_stepped(100, 0, 100 * 0.05, 1, 1000)
    eligible.up[Role.PREFILL][700].unread_tokens = 0
    eligible.up[Role.DECODE][300].calls = 0
    room = Room(Limits(prefill_seconds=1.0, step_seconds=0.03))

    looks = [room.for_one_more(eligible, begun=0, beginning=0) for _ in range(40)]

    assert not looks[0]
    assert looks[-1]


def test_a_long_prompt_is_due_earlier() -> None:
    """In time is what is read within four seconds; nothing has shown that 10,000 tokens take no second."""
    room, eligible = Room(Limits(prefill_seconds=1.0, in_time_seconds=4.0)), pairs([0], [None])

    assert room.due(eligible, 10_000, now=100.0) == (103.0, 1.0)
    assert room.due(eligible, 30_000, now=100.0) == (101.0, 3.0)


def test_a_prompt_is_due_later_where_an_engine_has_most_of_it() -> None:
    room, eligible = (
        Room(Limits(prefill_seconds=1.0, in_time_seconds=4.0)),
        pairs([0, 0], [None]),
    )
    _, second = eligible.up[Role.PREFILL]

    due = room.due(eligible, 30_000, now=100.0, cached={second.instance.id: 20_000})

    assert due == (103.0, 1.0)


def test_calls_wait_while_answers_everywhere_would_get_too_slow() -> None:
    """But no engine is left idle by a target that it cannot keep."""
    eligible = pairs([0], [None])
    (decode,) = eligible.up[Role.DECODE]
    for batch in (1, 20, 40) * 40:
        decode.latency.has_stepped(100, 0, 100 * (0.01 + 0.0005 * batch), batch, 1000 * batch)
    room = Room(Limits(prefill_seconds=1.0, step_seconds=0.02))

    decode.calls, decode.tokens = 5, 5_000
    assert room.for_one_more(eligible, begun=5, beginning=0)
    decode.calls, decode.tokens = 30, 30_000
    assert not room.for_one_more(eligible, begun=30, beginning=0)
    # A step of 20.5 ms, not twice the 10.5 ms of a single answer: this target can be kept.
    decode.calls, decode.tokens = 20, 20_000
    assert not room.for_one_more(eligible, begun=20, beginning=0)

    strict = Room(Limits(prefill_seconds=1.0, step_seconds=0.001))
    decode.calls, decode.tokens = 5, 5_000
    assert strict.for_one_more(eligible, begun=5, beginning=0)


def test_an_engine_that_is_slow_to_begin_with_any_prompt_has_several() -> None:
    eligible = pairs([0], [None])
    (prefill,) = eligible.up[Role.PREFILL]
    for tokens in (100, 1000, 10_000):
        prefill.latency.has_read(tokens, 0, 2 + tokens / 100_000, None)
    room = Room(Limits(prefill_seconds=1))
    assert waiting_seconds(prefill) > 1

    assert room.for_one_more(eligible, begun=0, beginning=0)
    prefill.unread_tokens = 50_000
    assert room.for_one_more(eligible, begun=0, beginning=0)
    prefill.unread_tokens = 300_000
    assert not room.for_one_more(eligible, begun=0, beginning=0)


def test_one_that_seems_slow_to_begin_has_no_more_room_than_its_kind() -> None:
    """It has had long prompts only, by which a line begins anywhere: calls let in for its room would flood the others."""
    eligible = pairs([0, 0, 0], [None])
    one, *others = eligible.up[Role.PREFILL]
    for tokens in (20_000, 60_000, 100_000) * 5:
        one.latency.has_read(tokens, 0, 10 + tokens / 1_000_000, None)
    family = one.latency.family
    for other in others:
        other.latency.belongs_to(family)
        for tokens in (100, 1000, 10_000):
            other.latency.has_read(tokens, 0, 0.01 + tokens / 10_000, None)
    assert (one.latency.prefill_seconds(0, 0.0) or 0.0) > 5
    room = Room(Limits(prefill_seconds=1))

    for engine in eligible.up[Role.PREFILL]:
        engine.unread_tokens = 20_000
    assert not room.for_one_more(eligible, begun=3, beginning=0)


def test_what_an_engine_says_of_others_keeps_no_call_of_ours_waiting_for_ever() -> None:
    eligible = pairs([0], [None])
    (prefill,), (decode,) = eligible.up[Role.PREFILL], eligible.up[Role.DECODE]
    for _ in range(20):
        decode.latency.has_stepped(8, 0, 8 * 0.02, 1, 1000)
    prefill.beyond = Beyond(unread_tokens=10**12)
    decode.beyond = Beyond(calls=10**6, kv_tokens=10**12)

    assert Room(Limits(prefill_seconds=1, step_seconds=0.03)).for_one_more(
        eligible, begun=0, beginning=0
    )


def stepping(decode: Endpoint) -> None:
    """It takes 10 ms, and half a millisecond for each answer of 1,000 tokens."""
    for batch in (1, 20, 40) * 40:
        decode.latency.has_stepped(100, 0, 100 * (0.01 + 0.0005 * batch), batch, 1000 * batch)


@pytest.mark.parametrize("staged", [False, True], ids=["batch", "staged"])
def test_those_that_are_on_their_way_to_decode_count_in_its_steps(staged: bool) -> None:
    """In staged mode all that prefill has are; else they are in decode's account already."""
    eligible = pairs([0], [None])
    (prefill,), (decode,) = eligible.up[Role.PREFILL], eligible.up[Role.DECODE]
    stepping(decode)
    decode.calls, decode.tokens = 10, 10_000
    room = Room(Limits(step_seconds=0.02), staged)

    assert room.for_one_more(eligible, begun=10, beginning=5)
    assert not room.for_one_more(eligible, begun=40, beginning=30)
    prefill.calls = 30
    assert room.for_one_more(eligible, begun=40, beginning=0) is not staged


def test_answers_of_an_engine_of_both_roles_are_on_their_way_to_none() -> None:
    eligible = pairs([], [])
    both = engine(Role.BOTH)
    eligible.up[Role.PREFILL] = eligible.up[Role.DECODE] = [both]
    stepping(both)
    both.calls, both.tokens = 12, 12_000
    room = Room(Limits(step_seconds=0.02), staged=True)

    assert room.for_one_more(eligible, begun=12, beginning=0)
    both.prefills = 8
    assert not room.for_one_more(eligible, begun=12, beginning=0)


def test_an_engine_that_is_on_its_way_back_makes_no_room_at_the_others() -> None:
    eligible = pairs([0, 0], [None])
    busy, back = eligible.up[Role.PREFILL]
    busy.unread_tokens = 50_000
    room = Room(Limits(prefill_seconds=1.0))
    assert room.for_one_more(eligible, begun=1, beginning=0)

    back.returned = 1.0
    assert not room.for_one_more(replace(eligible, careful=True), begun=1, beginning=0)

    alone = replace(eligible, careful=True, up={**eligible.up, Role.PREFILL: [back]})
    assert room.for_one_more(alone, begun=1, beginning=0)


def back(eligible: EligibleSet, role: Role) -> Endpoint:
    """The last engine of a role, which is on its way back from now on."""
    one = eligible.up[role][-1]
    one.returned = 1.0
    return one


def test_an_engine_that_is_on_its_way_back_makes_no_places_at_the_others() -> None:
    """Nine of ten calls go to these, which had 57 at once where they may have four."""
    eligible = replace(pairs([1, 0], [None, None]), careful=True)
    room = Room(Limits(prefill_concurrency=1))
    assert room.for_one_more(eligible, begun=1, beginning=0)
    back(eligible, Role.PREFILL)
    assert not room.for_one_more(eligible, begun=1, beginning=0)
    eligible.up[Role.PREFILL][0].calls = 0
    assert room.for_one_more(eligible, begun=1, beginning=0)

    room = Room(Limits(decode_concurrency=2))
    one = back(eligible, Role.DECODE)
    assert not room.for_one_more(eligible, begun=2, beginning=0)
    one.calls = 1
    assert room.for_one_more(eligible, begun=2, beginning=0)
    assert not room.for_one_more(eligible, begun=3, beginning=0)
    # What it has beyond its own places is in those of the others.
    one.calls = 3
    assert not room.for_one_more(eligible, begun=4, beginning=0)

    # One that is back has all pages.
    full = replace(pairs([0], [0.05, None]), careful=True)
    back(full, Role.DECODE)
    assert not Room(Limits(kv_free=0.1)).for_one_more(full, begun=0, beginning=0)


def test_lines_of_other_workers_have_their_turns_at_an_engine() -> None:
    """With room at one engine it is whose last turn was longest ago; with room at two of them both have it."""
    eligible = pairs([0, 0], [None])
    first, second = eligible.up[Role.PREFILL]
    first.unread_tokens = second.unread_tokens = 50_000
    room = Room(Limits(prefill_seconds=1.0))
    theirs = OtherProcesses(lines=1, since=100)

    assert not room.for_one_more(eligible, 0, 0, theirs, since=50)
    second.unread_tokens = 0
    assert room.for_one_more(eligible, 0, 0, theirs, since=50)
    assert not room.for_one_more(eligible, 0, 0, theirs, since=200)
    assert not room.for_one_more(eligible, 0, 0, theirs, since=None)
    first.unread_tokens = 0
    assert room.for_one_more(eligible, 0, 0, theirs, since=200)


def test_a_replica_has_its_part_whatever_the_others_have() -> None:
    eligible = pairs([0], [None])
    (prefill,), (decode,) = eligible.up[Role.PREFILL], eligible.up[Role.DECODE]
    stepping(decode)
    prefill.unread_tokens, decode.calls, decode.tokens = 4_000, 5, 5_000
    for engine, theirs in (prefill, (1, 20_000, 20_000, 0)), (decode, (30, 30_000, 0, 30)):
        shared = SharedEndpoint.of(engine)
        shared.take_in(engine, shared.far, *theirs)
        shared.far.count = 1
    room = Room(Limits(prefill_seconds=1.0, step_seconds=0.02))

    assert room.for_one_more(eligible, begun=5, beginning=0)
    prefill.unread_tokens += 2_000
    assert not room.for_one_more(eligible, begun=5, beginning=0)
    prefill.unread_tokens -= 2_000
    decode.calls, decode.tokens = decode.calls + 6, decode.tokens + 6_000
    assert not room.for_one_more(eligible, begun=11, beginning=0)


def test_many_engines_of_two_models_are_all_looked_at() -> None:
    """Each model has looks of its own: with one for both, each would see every other part for ever."""
    room = Room(Limits(prefill_seconds=1.0))
    models = [replace(pairs([0] * 128, [None]), model=name) for name in ("a", "b")]
    for eligible in models:
        for number, engine in enumerate(eligible.up[Role.PREFILL]):
            engine.unread_tokens = 20_000 if number < 64 else 0

    looks = [[room.for_one_more(eligible, 0, 0) for eligible in models] for _ in range(2)]

    assert looks == [[False, False], [True, True]]


def test_where_decode_stands_in_for_prefill_it_has_room_to_read() -> None:
    """Without a decode engine either there is nothing to wait for."""
    eligible = replace(pairs([0], [None]), disaggregated=False)
    (prefill,), (decode,) = eligible.up[Role.PREFILL], eligible.up[Role.DECODE]
    room = Room(Limits(prefill_seconds=1.0))
    prefill.unread_tokens = 50_000

    assert room.for_one_more(eligible, begun=0, beginning=0)
    decode.unread_tokens = 50_000
    assert not room.for_one_more(eligible, begun=0, beginning=0)
    eligible.up[Role.DECODE] = []
    assert room.for_one_more(eligible, begun=0, beginning=0)


def test_decode_s_places_are_also_those_that_workers_have_by_other_models() -> None:
    eligible = pairs([0], [None])
    (decode,) = eligible.up[Role.DECODE]
    shared = SharedEndpoint.of(decode)
    shared.take_in(decode, shared.near, 1, 100, 0, 1)

    room, nothing_of_this = Room(Limits(decode_concurrency=2)), OtherProcesses()

    assert room.for_one_more(eligible, 0, 0, nothing_of_this)
    assert not room.for_one_more(eligible, 1, 0, nothing_of_this)


def test_what_another_worker_has_at_engines_of_both_roles_counts_once() -> None:
    """A call that one reads and the other is to answer is one call."""
    eligible = pairs([], [])
    one, other = engine(Role.BOTH), engine(Role.BOTH)
    eligible.up[Role.PREFILL] = eligible.up[Role.DECODE] = [one, other]
    for each in (one, other):
        shared = SharedEndpoint.of(each)
        shared.take_in(each, shared.near, 2, 200, 100, 0, 1)
    room, theirs = Room(Limits(decode_concurrency=2)), OtherProcesses(begun=2)

    assert room.for_one_more(eligible, 1, 0, theirs)
    assert not room.for_one_more(eligible, 2, 0, theirs)
