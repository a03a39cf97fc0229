"""The scheduler tells the index what goes where, and what becomes of it."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import msgspec
import pytest

from pdgate.protocols.call import Call
from pdgate.protocols.errors import EngineFailed
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.disaggregation import (
    Always,
    Decision,
    SplitRule,
    Taken,
    UncachedTokensAbove,
)
from pdgate.scheduling.disaggregation.decision import LONG_PROMPT
from pdgate.scheduling.disaggregation.rules import NOTHING_CACHED
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.health.cause import Cause
from pdgate.scheduling.policies.round_robin import RoundRobin
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.prefix.index import PrefixIndex
from pdgate.scheduling.scheduler import Scheduler
from pdgate.scheduling.status import Beyond
from tests.support.scripted import D0, D1, P0, P1, chat, fleet

TOKENS = 128
BLOCKS = tuple(range(10, 18))


def call_of(blocks: Sequence[int] = BLOCKS, *, stream: bool = True) -> Call:
    tokens = len(blocks) * TOKENS
    return msgspec.structs.replace(chat(stream=stream), prompt_tokens=tokens, blocks=blocks)


class Named(Policy):
    """The one that a test names, by the index."""

    needs_prefixes = True

    def __init__(self, instance_id: str) -> None:
        self.instance_id = instance_id

    def choose(self, call: Call, endpoints: Sequence[Endpoint]) -> Endpoint:
        return next(c for c in endpoints if c.instance.id == self.instance_id)


class Engines:
    def __init__(
        self,
        rule: SplitRule | None = None,
        records: Sequence[Instance] = (P0, P1, D0, D1),
        decode: Policy | None = None,
    ) -> None:
        self.index = PrefixIndex()
        self.endpoints: Endpoints = fleet(*records)
        self.scheduler = Scheduler(
            self.endpoints, Named("p0"), decode or Named("d0"), RoundRobin(), rule, self.index
        )

    def known(self, call: Call | None = None) -> dict[str, int]:
        """Blocks of the call, by who has them."""
        matched = self.index.matched(call or call_of())
        return {instance_id: tokens // TOKENS for instance_id, tokens in matched.items()}

    def at(self, instance_id: str) -> Endpoint:
        endpoint = self.endpoints.get(instance_id)
        assert endpoint is not None
        return endpoint

    def send(self, call: Call) -> None:
        with self.scheduler.reserve(Role.PREFILL, call) as prefill:
            prefill.has_read(0.1)


def test_who_is_sent_a_prompt_counts_as_having_it_at_once() -> None:
    """And decode has it once it has taken it over."""
    engines = Engines()

    with engines.scheduler.reserve(Role.PREFILL, call_of()) as prefill:
        assert engines.known() == {"p0": 8}
        with engines.scheduler.reserve(Role.DECODE, call_of(), peer=prefill.instance):
            assert engines.known() == {"p0": 8, "d0": 8}
    assert engines.known() == {"p0": 8, "d0": 8}


def test_the_only_one_that_reads_needs_no_index() -> None:
    """There is nothing to choose, so its prompts are not even hashed, until another one is known."""
    engines = Engines(records=(P0, D0, D1), decode=RoundRobin())
    call = msgspec.structs.replace(call_of(), blocks=None)

    engines.send(call)

    assert call.blocks is None
    assert engines.known() == {}
    assert engines.at("p0").read_tokens == call.prompt_tokens

    engines.endpoints.put(P1)
    engines.endpoints.mark_up("p1", ["m"])
    engines.send(call_of())

    assert engines.known() == {"p0": 8}


def test_what_the_only_one_reads_is_kept_while_the_other_is_away() -> None:
    engines = Engines(decode=RoundRobin())
    engines.endpoints.mark_down("p1")

    engines.send(call_of())

    assert engines.known() == {"p0": 8}


@pytest.mark.parametrize(
    ("records", "decode"),
    [
        pytest.param((P0, D0, D1), Named("d0"), id="decode-asks-what-it-has"),
        pytest.param((P0, replace(D0, role=Role.BOTH)), RoundRobin(), id="decode-may-be-prefill"),
    ],
)
def test_where_decode_needs_it_there_is_one(records: Sequence[Instance], decode: Policy) -> None:
    engines = Engines(records=records, decode=decode)

    with (
        engines.scheduler.reserve(Role.PREFILL, call_of()) as prefill,
        engines.scheduler.reserve(Role.DECODE, call_of(), peer=prefill.instance),
    ):
        assert engines.known() == {"p0": 8, "d0": 8}


def test_only_what_is_not_cached_waits_to_be_read() -> None:
    engines = Engines()
    engines.send(call_of())
    longer = call_of((*BLOCKS, 20, 21))

    with engines.scheduler.reserve(Role.PREFILL, longer) as prefill:
        assert engines.at("p0").unread_tokens == 2 * TOKENS
        assert engines.at("p0").tokens == 10 * TOKENS
        prefill.has_read(0.1)

    assert engines.at("p0").unread_tokens == 0
    assert engines.at("p0").read_tokens == 10 * TOKENS


def test_a_leg_that_fails_before_the_prompt_was_read_is_not_believed() -> None:
    engines = Engines()
    engines.send(call_of(BLOCKS[:3]))

    with pytest.raises(EngineFailed), engines.scheduler.reserve(Role.PREFILL, call_of()):
        raise EngineFailed("it broke")

    assert engines.known() == {"p0": 3}


def test_a_leg_that_fails_afterwards_is() -> None:
    engines = Engines()

    def ask() -> None:
        with engines.scheduler.reserve(Role.DECODE, call_of()) as decode:
            decode.has_loaded(0.1)
            raise EngineFailed("it broke later")

    with pytest.raises(EngineFailed):
        ask()

    assert engines.known() == {"d0": 8}


def test_an_engine_that_was_reserved_and_not_asked_has_got_nothing() -> None:
    """As prefill, where decode is to read the prompt after all."""
    engines = Engines()

    with engines.scheduler.reserve(Role.PREFILL, call_of()) as prefill:
        prefill.withdraw()
        assert engines.at("p0").calls == 0

    assert engines.known() == {}
    assert engines.index.read_tokens == 0


def test_a_client_that_leaves_takes_nothing_of_what_others_have_read() -> None:
    """The first with a system prompt waits and leaves; of those behind it two were read, one is presumed to be, one will be."""
    engines = Engines()
    first, *others = (call_of((*BLOCKS, 20 + number)) for number in range(5))
    leaves = engines.scheduler.reserve(Role.PREFILL, first)
    reads = [engines.scheduler.reserve(Role.PREFILL, one) for one in others]
    for one in reads[:2]:
        one.read(0.1)
    reads[2].presume_end()

    leaves.withdraw()

    assert engines.known(first) == {"p0": len(BLOCKS)}
    for one in reads[2:]:
        with one:
            pass
    assert [engines.known(one) for one in others] == [{"p0": len(BLOCKS) + 1}] * 4


def test_what_prefill_is_presumed_to_have_is_taken_back_when_its_call_fails() -> None:
    engines = Engines()

    with engines.scheduler.reserve(Role.PREFILL, call_of()) as prefill:
        prefill.presume_end()
        assert engines.at("p0").calls == 0
        assert engines.known() == {"p0": 8}
        prefill.withdraw()

    assert engines.known() == {}
    prefill.presume_end()


def test_a_call_that_is_over_is_kept_by_no_one_who_knows_its_reservation() -> None:
    """Its body may be megabytes, and the time for which its prompt would count as unread minutes."""
    engines, call = Engines(), call_of()
    before = sys.getrefcount(call)

    with engines.scheduler.reserve(Role.PREFILL, call) as prefill:
        assert sys.getrefcount(call) > before
    presumed = prefill.presume_end

    assert sys.getrefcount(call) == before
    presumed()


def gone(engines: Engines) -> None:
    engines.endpoints.remove("p0")


def refused(engines: Engines) -> None:
    engines.endpoints.failed("p0", Cause.TRANSPORT)


def moved(engines: Engines) -> None:
    engines.endpoints.put(replace(engines.at("p0").instance, url="http://another-place"))


@pytest.mark.parametrize("lose", [gone, refused, moved])
def test_an_engine_whose_process_is_gone_has_nothing(lose: Callable[[Engines], None]) -> None:
    engines = Engines()
    engines.send(call_of())

    lose(engines)

    assert engines.known() == {}


def test_an_engine_that_only_did_not_answer_in_time_has_it_still() -> None:
    engines = Engines()
    engines.send(call_of())

    engines.endpoints.mark_silent("p0")

    assert engines.known() == {"p0": 8}


class Unread(SplitRule):
    """Splits what prefill has to read a token of, and notes how much that is."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def decide(
        self,
        call: Call,
        prefill: Endpoint,
        decodes: Sequence[Endpoint],
        cached: Mapping[str, int] = NOTHING_CACHED,
        may_keep: bool = True,
    ) -> Decision:
        self.seen.append((prefill.unread_tokens, prefill.own_unread_squares))
        return Decision(Taken.SPLIT if prefill.unread_tokens else Taken.LOCAL, LONG_PROMPT)


class UnreadBeside(Unread):
    reads_cached = True


@pytest.mark.parametrize("kind", [Unread, UnreadBeside])
@pytest.mark.parametrize("records", [(P0, P1, D0), (P0, D0)], ids=["several", "one"])
def test_whether_a_call_stays_is_asked_as_it_is_decided_of_what_prefill_has_cached(
    kind: type[Unread], records: Sequence[Instance]
) -> None:
    """Else the gate would let in past prefill's line what is split then, or keep what is not."""
    rule = kind()
    engines = Engines(rule, records, RoundRobin())
    engines.send(call_of(BLOCKS[:6]))

    stays = engines.scheduler.stays(call_of(), engines.at("p0"))
    with engines.scheduler.reserve(Role.PREFILL, call_of()) as prefill:
        decision = engines.scheduler.decide(call_of(), prefill)

    assert stays is (decision.taken is not Taken.SPLIT)
    assert rule.seen[0] == rule.seen[1]
    known = kind.reads_cached or len(records) > 2
    assert rule.seen[0][0] == (2 if known else 8) * TOKENS


def test_no_engine_is_believed_to_hold_more_than_it_says() -> None:
    engines = Engines()
    engines.at("p0").beyond = Beyond(kv_capacity=5 * TOKENS)

    engines.send(call_of())

    assert engines.known() == {"p0": 5}


def test_nothing_is_kept_where_no_policy_asks_for_it() -> None:
    engines = Engines()
    engines.send(call_of())
    engines.scheduler.use(Role.PREFILL, RoundRobin())
    assert engines.known() == {"p0": 8}, "decode's still asks"
    engines.scheduler.use(Role.DECODE, RoundRobin())
    assert engines.known() == {}

    engines.send(call_of())
    assert engines.known() == {}

    engines.scheduler.use(Role.PREFILL, Named("p0"))
    engines.send(call_of())
    assert engines.known() == {"p0": 8}


def taken(engines: Engines, call: Call) -> Taken:
    with engines.scheduler.reserve(Role.PREFILL, call) as prefill:
        decision = engines.scheduler.decide(call, prefill)
        prefill.withdraw()
    return decision.taken


def test_a_call_is_split_for_what_decode_has_not_cached() -> None:
    engines = Engines(UncachedTokensAbove(3 * TOKENS))
    assert taken(engines, call_of()) is Taken.SPLIT

    with engines.scheduler.reserve(Role.DECODE, call_of(BLOCKS[:5])):
        pass

    assert taken(engines, call_of()) is Taken.LOCAL


def test_what_decode_has_cached_counts_whatever_decode_is_chosen_by() -> None:
    """The second turn of a chat is no long prompt, and it goes to where its first one was."""
    engines = Engines(UncachedTokensAbove(3 * TOKENS), decode=RoundRobin())
    engines.scheduler.use(Role.PREFILL, RoundRobin())
    with engines.scheduler.reserve(Role.DECODE, call_of(BLOCKS[:5])) as first:
        pass

    for _ in range(3):
        with engines.scheduler.reserve(Role.PREFILL, call_of()) as prefill:
            decision = engines.scheduler.decide(call_of(), prefill)
            prefill.withdraw()
        assert (decision.taken, decision.among) == (Taken.LOCAL, (first.instance.id,))
        among = decision.among
        with engines.scheduler.reserve(Role.DECODE, call_of(), reads=True, among=among) as second:
            assert second.instance == first.instance


def asked_and_decided(engines: Engines, call: Call) -> tuple[bool, Decision]:
    """Whether the call would stay, and what is decided of it once b0 is reserved."""
    stays = engines.scheduler.stays(call, engines.at("b0"))
    with engines.scheduler.reserve(Role.PREFILL, call) as prefill:
        decision = engines.scheduler.decide(call, prefill)
        prefill.withdraw()
    return stays, decision


def test_what_the_reader_of_both_roles_has_cached_keeps_a_call_there() -> None:
    """Its own share of what the engine has to read counts: other calls' prompts make this one no longer."""
    both = [replace(P0, id=f"b{n}", role=Role.BOTH) for n in range(2)]
    engines = Engines(UncachedTokensAbove(3 * TOKENS), both, Named("b1"))
    engines.scheduler.use(Role.PREFILL, Named("b0"))
    assert asked_and_decided(engines, call_of())[1].taken is Taken.SPLIT
    engines.send(call_of(BLOCKS[:5]))

    with engines.scheduler.reserve(Role.PREFILL, call_of(range(100, 150))):
        stays, decision = asked_and_decided(engines, call_of())

    assert stays
    assert (decision.taken, decision.among) == (Taken.LOCAL, ("b0",))


def test_what_a_reader_without_room_has_cached_keeps_no_call_there() -> None:
    both = [replace(P0, id=f"b{n}", role=Role.BOTH) for n in range(2)]
    engines = Engines(UncachedTokensAbove(3 * TOKENS), both, Named("b1"))
    engines.scheduler.use(Role.PREFILL, Named("b0"))
    engines.send(call_of(BLOCKS[:5]))
    for one, length in zip(both, (4000, 8000), strict=True):
        engines.endpoints.mark_up(one.id, ["m"], {"m": length})
    call = msgspec.structs.replace(call_of(), body=chat(max_tokens=5000).body)

    stays, decision = asked_and_decided(engines, call)

    assert not stays
    assert decision.taken is Taken.SPLIT


def test_what_the_longest_reader_has_cached_keeps_a_call_there() -> None:
    """It may be too long for all of them, by estimate: then it has as much room there as anywhere."""
    both = [replace(P0, id=f"b{n}", role=Role.BOTH) for n in range(3)]
    engines = Engines(UncachedTokensAbove(3 * TOKENS), both, Named("b1"))
    engines.scheduler.use(Role.PREFILL, Named("b0"))
    engines.send(call_of(BLOCKS[:7]))
    for one, length in zip(both, (8192, 8192, 1000), strict=True):
        engines.endpoints.mark_up(one.id, ["m"], {"m": length})
    call = msgspec.structs.replace(call_of(), body=chat(max_tokens=7500).body)

    stays, decision = asked_and_decided(engines, call)

    assert (stays, decision.taken, decision.among) == (True, Taken.LOCAL, ("b0",))


def test_those_that_are_named_may_be_gone() -> None:
    engines = Engines(decode=RoundRobin())

    chosen = engines.scheduler.reserve(Role.DECODE, call_of(), avoid=("d0",), among=("d0",))

    assert chosen.instance is D1


def test_a_rule_that_does_not_ask_ends_the_count() -> None:
    engines = Engines(UncachedTokensAbove(3 * TOKENS), decode=RoundRobin())
    engines.scheduler.use(Role.PREFILL, RoundRobin())
    engines.send(call_of())
    assert engines.known()

    engines.scheduler.rule = Always()

    assert engines.known() == {}
