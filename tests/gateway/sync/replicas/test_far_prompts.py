"""Which prompts a replica has sent where, the others know; and no call waits for it."""

from array import array

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdgate.gateway.sync.replicas import far_prompts
from pdgate.gateway.sync.replicas.base import ReplicaStream
from pdgate.gateway.sync.replicas.far_prompts import FarPrompts
from pdgate.gateway.sync.replicas.prompts import BadPrompts, decode, encode, sent
from pdgate.protocols.call import Call
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.policies.round_robin import RoundRobin
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.policy_context import PolicyContext
from pdgate.scheduling.prefix.index import PrefixIndex
from tests.gateway.sync.replicas.sites import ENGINES, Told
from tests.support.scripted import chat

TOKENS = 128
HASHES = st.lists(st.integers(0, 2**64 - 1), max_size=20)


def prompt(*blocks: int) -> Call:
    return msgspec.structs.replace(chat(), prompt_tokens=TOKENS * len(blocks), blocks=blocks)


class Replica:
    def __init__(self, told: Told | ReplicaStream, gateway: str, *, asks: bool = True) -> None:
        self.index = PrefixIndex()
        self.endpoints = Endpoints(ENGINES)
        stream = told.seen() if isinstance(told, Told) else told
        self.prompts = FarPrompts(self.index, self.endpoints, gateway, stream)

        def load(name: str, context: PolicyContext) -> Policy:
            policy = RoundRobin()
            policy.needs_prefixes = asks
            return policy

        self.prompts.around(load)("one", PolicyContext())

    def knows(self, *blocks: int) -> dict[str, int]:
        found = self.index.matched(prompt(*blocks))
        return {one: tokens // TOKENS for one, tokens in found.items()}


async def test_a_replica_knows_what_another_has_sent_where() -> None:
    told = Told()
    one, other = Replica(told, "one"), Replica(told, "other")
    one.index.routed(prompt(1, 2, 3), "e1")
    await one.prompts.once()
    await other.prompts.once()

    assert other.knows(1, 2, 3) == {"e1": 3}
    assert (one.prompts.told, other.prompts.heard) == (1, 1)


async def test_what_is_taken_back_is_taken_back_everywhere() -> None:
    told = Told()
    one, other = Replica(told, "one"), Replica(told, "other")
    one.index.routed(prompt(1, 2), "e1")
    had = one.index.routed(prompt(1, 2, 3), "e1")
    one.index.unrouted(prompt(1, 2, 3), "e1", had)
    await one.prompts.once()
    await other.prompts.once()

    assert other.knows(1, 2, 3) == {"e1": 2}


async def test_what_is_heard_is_not_told_again_and_a_gateway_does_not_hear_itself() -> None:
    told = Told()
    one, worker, other = Replica(told, "one"), Replica(told, "one"), Replica(told, "other")
    one.index.routed(prompt(1, 2), "e1")
    for replica in (one, worker, other, one, worker, other):
        await replica.prompts.once()

    assert len(told.batches) == 1
    assert (worker.knows(1, 2), other.knows(1, 2)) == ({}, {"e1": 2})
    assert one.prompts.heard == 0


async def test_who_begins_hears_what_was_told_before() -> None:
    told = Told()
    one = Replica(told, "one")
    one.index.routed(prompt(1), "e0")
    await one.prompts.once()
    late = Replica(told, "late")
    await late.prompts.once()

    assert late.knows(1) == {"e0": 1}


async def test_redis_away_costs_what_could_not_be_told_and_nothing_else() -> None:
    told = Told()
    one, other = Replica(told, "one"), Replica(told, "other")
    told.away = True
    one.index.routed(prompt(1), "e0")
    await one.prompts.once()
    told.away = False
    one.index.routed(prompt(2), "e0")
    await one.prompts.once()
    await other.prompts.once()

    assert (one.prompts.dropped, one.prompts.told) == (1, 1)
    assert (other.knows(1), other.knows(2)) == ({}, {"e0": 1})


async def test_no_more_is_kept_to_be_told_than_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(far_prompts, "MOST_BYTES", 5 * 8)
    one = Replica(Told(), "one")
    for first in range(10):
        one.index.routed(prompt(first, 100 + first), "e0")
    await one.prompts.once()
    one.index.routed(prompt(1000), "e0")
    await one.prompts.once()

    assert (one.prompts.told, one.prompts.dropped) == (3, 8)


async def test_engines_that_a_replica_does_not_know_are_not_in_its_index() -> None:
    told = Told()
    one, other = Replica(told, "one"), Replica(told, "other")
    other.endpoints.remove("e1")
    one.index.routed(prompt(1), "e1")
    one.index.routed(prompt(1), "e2")
    await one.prompts.once()
    await other.prompts.once()

    assert other.knows(1) == {"e2": 1}


async def test_nothing_is_told_before_a_policy_asks_what_is_cached() -> None:
    told = Told()
    one = Replica(told, "one", asks=False)
    one.index.routed(prompt(1), "e0")
    await one.prompts.once()

    assert told.batches == []


async def test_what_cannot_be_used_is_passed_over_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = Told()
    one, other = Replica(told, "one"), Replica(told, "other")
    told.batches += [b"", b"\x00", msgspec.msgpack.encode({"version": 2})]
    told.batches.append(
        msgspec.msgpack.encode(
            {"version": 1, "gateway": "x", "sent": [["http://10.0.0.0", None, b"123"]]}
        )
    )
    one.index.routed(prompt(1), "e0")
    await one.prompts.once()
    await other.prompts.once()

    assert (other.prompts.refused, other.knows(1)) == (4, {"e0": 1})
    assert caplog.text.count("is ignored") == 2


@given(HASHES, st.none() | st.integers(0, 100))
def test_what_is_told_is_understood(hashes: list[int], kept: int | None) -> None:
    (found,) = decode(encode("g", [sent("http://e", array("Q", hashes), kept)])).sent

    assert (found.engine, list(found.hashes()), found.kept) == ("http://e", hashes, kept)


@given(st.binary())
def test_nothing_is_too_odd_to_be_refused(data: bytes) -> None:
    with pytest.raises(BadPrompts):
        decode(data)
